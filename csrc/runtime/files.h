// The checks of fuseconv/untrusted/files.py: a path must be a regular file, and only the user can change a file from
// which code is loaded. Also locates the weights of a bundle.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Returns why a path is not a regular file, such as "it is a pipe, not a file", or an empty string if it is a regular
// file. A symbolic link is not a regular file.
std::string oddity(std::filesystem::file_status status);

// Checks that only the user and root can change the given paths: files from which code is loaded, and their folders.
// Accepts group write permission if the group is private to the owner. Throws Error of kind refused.
void check_unshared(const std::vector<std::filesystem::path>& paths);

// Returns the folder to which the paths of weight files are relative. For the bundle of a method, which lies inside
// another bundle, this is the enclosing bundle; for any other bundle, it is the bundle itself. weights_folder in
// fuseconv/bundle/methods.py does the same.
std::filesystem::path weights_folder(const std::filesystem::path& bundle);

}  // namespace fuseconv::runtime
