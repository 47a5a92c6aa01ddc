// The files of fuseconv/untrusted/files.py: plain ones, and of code those that nobody else may change.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Why a path, of which links are not followed, is no plain file: "it is a pipe, not a file". Empty if it is one.
std::string oddity(std::filesystem::file_status status);

// Checks that nobody but the user and root may change files from which code is loaded, or their folders; throws Error
// of kind refused. What a group may write is fine if the group is the owner's own.
void check_unshared(const std::vector<std::filesystem::path>& paths);

}  // namespace fuseconv::runtime
