#include "files.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuseconv/error.h"

namespace fuseconv::runtime {
namespace {

namespace fs = std::filesystem;

std::string user(uid_t uid) {
  const passwd* found = getpwuid(uid);
  return found != nullptr ? found->pw_name : std::to_string(uid);
}

// Returns whether a group is private to a user: the group has the user's id or name, and no other members.
bool is_private(gid_t gid, uid_t uid) {
  const std::string name = user(uid);
  const group* found = getgrgid(gid);
  if (found == nullptr) {
    return gid == uid;
  }
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (name != *member) {
      return false;
    }
  }
  return gid == uid || name == found->gr_name;
}

void refuse(const std::string& what, const fs::path& path, const std::string& fix) {
  throw Error(Kind::refused, what, path.string(), fix);
}

}  // namespace

std::string oddity(fs::file_status status) {
  switch (status.type()) {
    case fs::file_type::regular:
      return "";
    case fs::file_type::directory:
      return "it is a folder, not a file";
    case fs::file_type::fifo:
      return "it is a pipe, not a file";
    case fs::file_type::socket:
      return "it is a socket, not a file";
    case fs::file_type::symlink:
      return "it is a symbolic link";
    default:
      return "it is a device, not a file";
  }
}

void check_unshared(const std::vector<fs::path>& paths) {
  for (const fs::path& path : paths) {
    struct stat found;
    if (stat(path.c_str(), &found) != 0) {
      throw Error(Kind::file, std::strerror(errno), path.string(), "check the path and its permissions");
    }
    const std::string name = path.filename().string();
    const bool sticky = S_ISDIR(found.st_mode) && (found.st_mode & S_ISVTX) != 0;
    if (found.st_uid != 0 && found.st_uid != geteuid()) {
      refuse(name + ", from which code is loaded, belongs to another user", path,
             "if you trust its author, make your own copy, or chown it to " + user(geteuid()));
    }
    if ((found.st_mode & S_IWOTH) != 0 && !sticky) {
      refuse(name + ", from which code is loaded, is writable by everyone", path, "chmod o-w " + path.string());
    }
    if ((found.st_mode & S_IWGRP) != 0 && !sticky && !is_private(found.st_gid, found.st_uid)) {
      refuse(name + ", from which code is loaded, is writable by a group", path, "chmod g-w " + path.string());
    }
  }
}

fs::path weights_folder(const fs::path& bundle) {
  const bool is_method = bundle.parent_path().filename() == "methods" && !fs::exists(bundle / "weights.safetensors");
  return is_method ? bundle.parent_path().parent_path() : bundle;
}

}  // namespace fuseconv::runtime
