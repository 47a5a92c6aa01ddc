// Makes the checks of fuseconv/untrusted/files.py: whether a path is a regular file, and whether only the user can
// change a file from which code is loaded. Also locates the weights of a bundle.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fuseconv::runtime {

// Returns the reason for which a path is not a regular file, such as "it is a pipe, not a file", or an empty string if
// it is a regular file. A symbolic link is not a regular file.
std::string oddity(std::filesystem::file_status status);

// Checks that only the user and root can change the given paths: files from which code is loaded, and their folders.
// Accepts group write permission if the group is private to the owner. Throws an Error of kind `refused` if another
// user can change one of the paths.
void check_unshared(const std::vector<std::filesystem::path>& paths);

// Returns the folder to which the paths of weight files are relative. For the bundle of a method, which lies inside
// another bundle, this is the folder of the enclosing bundle; for any other bundle, it is the folder of the bundle
// itself. Computes the same path as weights_folder in fuseconv/bundle/methods.py.
std::filesystem::path weights_folder(const std::filesystem::path& bundle);

}  // namespace fuseconv::runtime
