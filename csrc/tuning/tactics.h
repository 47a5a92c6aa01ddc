// Stores measured tactics: which ways to compute a problem were timed, and how long each took.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fuseconv::tuning {

// One way to compute a problem. A tactic has the same name in every process and for every size.
struct Tactic {
  std::string name;
  double microseconds;
  double noise;  // the relative spread of the repeated timings; each family defines its measure
};

// Tactics by family. The problems of a family differ in one size only, such as the number of rows of a linear layer.
// The name of a family contains the device, the version of the library that proposes tactics, and everything else that
// a timing depends on.
class Tactics {
 public:
  // Returns the tactics measured at exactly this size, fastest first, or an empty list if there are none.
  std::vector<Tactic> measured(const std::string& family, int64_t size) const;

  // Returns the tactics of the nearest measured sizes, ordered by their expected time at this size. For a tactic that
  // was measured on both sides of the size, the logarithm of its time is interpolated over the logarithm of the size.
  // The other tactics follow. Returns an empty list if no size of the family was measured.
  std::vector<Tactic> expected(const std::string& family, int64_t size) const;

  // Stores the tactics measured at a size, in place of those stored before for this size. Leaves out slow tactics.
  void put(const std::string& family, int64_t size, std::vector<Tactic> tactics);

  // Returns the JSON text that `add` reads. docs/tuning.md describes the format.
  std::string to_json() const;

  // Adds the tactics of a JSON text. If the text is invalid, adds nothing and throws std::runtime_error that says what
  // is wrong.
  void add(std::string_view json);

 private:
  std::map<std::string, std::map<int64_t, std::vector<Tactic>>> families_;
};

}  // namespace fuseconv::tuning
