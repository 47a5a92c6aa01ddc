// policy LIMIT MEMORY RECURS: reads what happens to a policy of CUDA graphs, one event per line, and prints its
// answers.
#include <iostream>
#include <sstream>
#include <string>

#include "graph_payoff.h"

using namespace fuseconv::runtime;

int main(int, char** words) {
  const size_t limit = std::stoul(words[1]);
  const int64_t memory = std::stoll(words[2]);
  WhenItPays pays(limit, memory, words[3] == std::string("1"));
  AtFirstSight first(limit, memory);
  GraphPolicy& policy = words[3] == std::string("first") ? static_cast<GraphPolicy&>(first) : pays;
  std::string line, event;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    int64_t key = 0, size = 0, total = 0;
    int contended = 0, replayed = 0;
    double seconds = 0;
    in >> event >> key;
    const Shapes shapes = {{key}};
    if (event == "step") {
      in >> contended;
      const int step = static_cast<int>(policy.step(shapes, contended));
      std::cout << step << " " << policy.rest.exchange(0) << "\n";
    } else if (event == "timed") {
      in >> contended >> replayed >> seconds;
      std::cout << policy.timed(shapes, contended, replayed, seconds) << "\n";
    } else if (event == "room") {
      in >> size;
      const auto dropped = policy.room(shapes, size);
      std::cout << (dropped ? "yes" : "no");
      for (const Shapes& other : dropped.value_or(std::vector<Shapes>())) {
        std::cout << " " << other[0][0];
      }
      std::cout << "\n";
    } else {
      in >> size >> total >> seconds;
      std::cout << policy.captured(shapes, size, total, seconds) << "\n";
    }
  }
  return 0;
}
