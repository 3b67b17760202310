/// UCX looks for a character device /dev/infiniband/uverbs0 that it may read and write before it uses a verbs device.
/// There is none, and an ordinary user cannot make one. Loaded in front (LD_PRELOAD, by `nupa run`), this library
/// answers for that one path as for /dev/null, which is what the question is about: may this user open it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

#define NUPA_SHOWN extern "C" __attribute__((visibility("default")))

namespace {

constexpr const char* kFolder = "/dev/infiniband/";
constexpr const char* kStandIn = "/dev/null";

const char* redirect(const char* path) {
  if (path == nullptr || std::strncmp(path, kFolder, std::strlen(kFolder)) != 0) return path;
  return std::strcmp(path + std::strlen(kFolder), "uverbs0") == 0 ? kStandIn : path;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

NUPA_SHOWN int stat(const char* path, struct stat* status) noexcept {
  static auto* real = next<int(const char*, struct stat*)>("stat");
  return real(redirect(path), status);
}

NUPA_SHOWN int stat64(const char* path, struct stat64* status) noexcept {
  static auto* real = next<int(const char*, struct stat64*)>("stat64");
  return real(redirect(path), status);
}

/// Programs built before glibc 2.33 ask this way.
NUPA_SHOWN int __xstat(int version, const char* path, struct stat* status) noexcept {
  static auto* real = next<int(int, const char*, struct stat*)>("__xstat");
  return real(version, redirect(path), status);
}

NUPA_SHOWN int access(const char* path, int mode) noexcept {
  static auto* real = next<int(const char*, int)>("access");
  return real(redirect(path), mode);
}
