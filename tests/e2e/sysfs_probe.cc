// SPDX-License-Identifier: Apache-2.0
/// Looks for an adapter by each function of libc that takes a path. Prints a line for each: "ok NAME" or "bad NAME".
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr const char* kClass = "/sys/class/infiniband";
constexpr const char* kDevice = "/sys/class/infiniband/nupa0";
constexpr const char* kFile = "/sys/class/infiniband/nupa0/ports/1/state";
constexpr const char* kReal = "/sys/devices/virtual/nupa/nupa0/infiniband/nupa0";
int g_bad = 0;

void tell(const char* name, bool ok) {
  std::printf("%s %s\n", ok ? "ok" : "bad", name);
  if (!ok) ++g_bad;
}

bool has_state(int fd) {
  char text[16] = "";
  const bool ok = fd >= 0 && read(fd, text, sizeof text - 1) > 0 && std::strcmp(text, "4: ACTIVE\n") == 0;
  if (fd >= 0) close(fd);
  return ok;
}
bool has_state(FILE* file) {
  char text[16] = "";
  const bool ok =
      file != nullptr && std::fgets(text, sizeof text, file) != nullptr && std::strcmp(text, "4: ACTIVE\n") == 0;
  if (file != nullptr) std::fclose(file);
  return ok;
}
int is_device(const dirent* entry) { return std::strcmp(entry->d_name, "nupa0") == 0; }
int is_device64(const dirent64* entry) { return std::strcmp(entry->d_name, "nupa0") == 0; }

}  // namespace

int main(int argc, char**) {
  // Not constants, so that FORTIFY_SOURCE checks them at run time.
  const int flags = argc > 0 ? O_RDONLY : O_RDWR;
  const size_t size = argc > 0 ? PATH_MAX : 0;
  tell("open", has_state(open(kFile, flags)));
  tell("open64", has_state(open64(kFile, flags)));
  tell("openat", has_state(openat(AT_FDCWD, kFile, flags)));
  tell("openat64", has_state(openat64(AT_FDCWD, kFile, flags)));
  tell("fopen", has_state(std::fopen(kFile, "r")));
  tell("fopen64", has_state(fopen64(kFile, "r")));
  struct stat status;
  struct stat64 status64;
  struct statx statusx;
  tell("stat", stat(kFile, &status) == 0 && S_ISREG(status.st_mode));
  tell("stat64", stat64(kFile, &status64) == 0 && S_ISREG(status64.st_mode));
  tell("lstat", lstat(kDevice, &status) == 0 && S_ISLNK(status.st_mode));
  tell("lstat64", lstat64(kDevice, &status64) == 0 && S_ISLNK(status64.st_mode));
  tell("fstatat", fstatat(AT_FDCWD, kFile, &status, 0) == 0 && S_ISREG(status.st_mode));
  tell("fstatat64", fstatat64(AT_FDCWD, kFile, &status64, 0) == 0 && S_ISREG(status64.st_mode));
  tell("statx", statx(AT_FDCWD, kFile, 0, STATX_TYPE, &statusx) == 0 && S_ISREG(statusx.stx_mode));
  tell("access", access(kFile, R_OK) == 0);
  tell("euidaccess", euidaccess(kFile, R_OK) == 0);
  tell("eaccess", eaccess(kFile, R_OK) == 0);
  tell("faccessat", faccessat(AT_FDCWD, kFile, R_OK, 0) == 0);
  char target[PATH_MAX] = "";
  tell("readlink", readlink(kDevice, target, size) > 0 && std::strncmp(target, "../../devices/", 14) == 0);
  tell("readlinkat",
       readlinkat(AT_FDCWD, kDevice, target, size) > 0 && std::strncmp(target, "../../devices/", 14) == 0);
  tell("realpath", realpath(kDevice, target) == target && std::strcmp(target, kReal) == 0);
  char* const resolved = realpath(kDevice, nullptr);
  tell("realpath of null", resolved != nullptr && std::strcmp(resolved, kReal) == 0);
  std::free(resolved);
  char* const canonical = canonicalize_file_name(kDevice);
  tell("canonicalize_file_name", canonical != nullptr && std::strcmp(canonical, kReal) == 0);
  std::free(canonical);
  glob_t found{};
  tell("glob", glob("/sys/class/infiniband/*/ports/*/state", 0, nullptr, &found) == 0 && found.gl_pathc >= 1 &&
                   std::strcmp(found.gl_pathv[0], kFile) == 0);
  globfree(&found);
  glob64_t found64{};
  tell("glob64",
       glob64("/sys/class/infiniband/*/ports/*/state", GLOB_NOSORT, nullptr, &found64) == 0 && found64.gl_pathc >= 1);
  globfree64(&found64);
  tell("glob without a match",
       glob("/sys/class/infiniband/x*/ports", 0, nullptr, &found) == GLOB_NOMATCH && found.gl_pathc == 0);
  tell("glob elsewhere", glob("/sys/class/net/l*", 0, nullptr, &found) == 0 && found.gl_pathc >= 1);
  tell("glob that goes on", glob("/sys/class/infiniband/*", GLOB_APPEND, nullptr, &found) == 0 && found.gl_pathc >= 2);
  globfree(&found);
  DIR* const folder = opendir(kClass);
  bool has_found = false;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) has_found = has_found || is_device(entry);
  tell("opendir", has_found);
  dirent** entries = nullptr;
  tell("scandir", scandir(kClass, &entries, is_device, alphasort) == 1);
  dirent64** entries64 = nullptr;
  tell("scandir64", scandir64(kClass, &entries64, is_device64, alphasort64) == 1);
  tell("another file", access("/proc/self/status", R_OK) == 0 && access("/sys/class/infinibandx", F_OK) != 0);
  tell("chdir", chdir(kDevice) == 0 && has_state(open("ports/1/state", flags)));
  return g_bad == 0 ? 0 : 1;
}
