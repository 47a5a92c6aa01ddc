// The errors of fuseconv/errors.py: what went wrong, where, how to fix it, and the exit status of its kind.
#pragma once

#include <stdexcept>
#include <string>

namespace fuseconv::runtime {

enum class Kind { usage = 2, contract = 2, refused = 3, unsupported = 4, upstream = 5, file = 6 };

class Error : public std::runtime_error {
 public:
  Error(Kind kind, const std::string& what, std::string where, std::string fix)
      : std::runtime_error(what), kind(kind), where(std::move(where)), fix(std::move(fix)) {}

  int exit_status() const { return static_cast<int>(kind); }

  // The three lines that Python prints.
  std::string text() const {
    return std::string(what()) + (where.empty() ? "" : "\n  at: " + where) + (fix.empty() ? "" : "\n  fix: " + fix);
  }

  Kind kind;
  std::string where, fix;
};

}  // namespace fuseconv::runtime
