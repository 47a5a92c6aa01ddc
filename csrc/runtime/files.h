// The checks of fuseconv/untrusted/files.py: plain files, and code files that only the user can change; and where the
// weights of a bundle are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Why a path is not a plain file ("it is a pipe, not a file"), or an empty string. Links are not followed.
std::string oddity(std::filesystem::file_status status);

// Checks that only the user and root may change files from which code is loaded, and their folders. Throws Error of
// kind refused. Group write permission is accepted if the group is private to the owner.
void check_unshared(const std::vector<std::filesystem::path>& paths);

// The folder to which the names of files of weights are relative: for a method, that of the whole bundle. As
// weights_folder of fuseconv/bundle/methods.py.
std::filesystem::path weights_folder(const std::filesystem::path& bundle);

}  // namespace fuseconv::runtime
