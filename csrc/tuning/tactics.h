// The measured tactics of problems: which ways to compute them were tried, and how long each took.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fuseconv::tuning {

// One way to compute a problem. The name is the same in every process and for every size.
struct Tactic {
  std::string name;
  double microseconds;
  double noise;  // the spread of its repeated timings, relative to their median
};

// By family: problems that differ in one size only, such as the rows of a linear layer. The name of a family contains
// the device, the version of the library that proposes tactics, and all else that a timing depends on.
class Tactics {
 public:
  // Those measured at exactly this size, fastest first. Empty if there are none.
  std::vector<Tactic> measured(const std::string& family, int64_t size) const;

  // Those of the nearest measured sizes, by the time that is expected at this size: for a tactic that was measured on
  // both sides, the logarithm of its time is interpolated over the logarithm of the size. The others follow. Empty if
  // the family was not measured.
  std::vector<Tactic> expected(const std::string& family, int64_t size) const;

  // Stores what was measured at a size, in place of what was known. Slow tactics are left out.
  void put(const std::string& family, int64_t size, std::vector<Tactic> tactics);

  // The JSON text that `add` reads: docs/tuning.md describes it.
  std::string to_json() const;

  // Adds the tactics of a JSON text. Throws std::runtime_error with what is wrong in it, and then adds nothing.
  void add(std::string_view json);

 private:
  std::map<std::string, std::map<int64_t, std::vector<Tactic>>> families_;
};

}  // namespace fuseconv::tuning
