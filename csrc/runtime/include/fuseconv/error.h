// The errors of fuseconv/errors.py. An error states what went wrong, where, and how to fix it. The kind of an error
// determines the program's exit status.
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

  // Returns the message, the location and the fix, one per line, as Python prints them.
  std::string text() const {
    return std::string(what()) + (where.empty() ? "" : "\n  at: " + where) + (fix.empty() ? "" : "\n  fix: " + fix);
  }

  Kind kind;
  std::string where, fix;
};

}  // namespace fuseconv::runtime
