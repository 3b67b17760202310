// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>

#include "base/settings.h"
#include "cli/commands.h"
#include "cli/mounts.h"
#include "nupa_config.h"
#include "runtime/directory.h"
#include "sysfs/live/live.h"

namespace nupa::cli {
namespace {

/// Puts `value` in front of a colon-separated variable.
void prepend(base::Variable variable, const std::string& value) {
  const char* before = base::text_setting(variable);
  const std::string joined = before == nullptr ? value : value + ":" + before;
  setenv(variable.name(), joined.c_str(), 1);
}

const char* transport_in_force() {
  const char* set = base::text_setting("NUPA_TRANSPORT");
  return set == nullptr ? base::find_setting("NUPA_TRANSPORT")->usual.data() : set;
}

}  // namespace

std::string dropin_folder() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return {};
  self[length] = '\0';
  *std::strrchr(self, '/') = '\0';
  for (const char* place : {NUPA_DROPIN_IN_BUILD, NUPA_DROPIN_INSTALLED}) {
    char resolved[PATH_MAX];
    const std::string folder = std::string(self) + "/" + place;
    if (::access((folder + "/libibverbs.so.1").c_str(), R_OK) == 0 && realpath(folder.c_str(), resolved) != nullptr)
      return resolved;
  }
  return {};
}

namespace {

/// Makes the files in which programs look for an adapter, and names their folder to libnupa-preload.so.
Result<void> show_devices(bool by_mount) {
  const auto directory = runtime::Directory::open();
  if (!directory) return tl::unexpected(directory.error());
  const auto entries = sysfs::describe_now(by_mount);
  if (!entries) return tl::unexpected(entries.error());
  const auto tree = sysfs::publish(**directory, *entries);
  if (!tree) return tl::unexpected(tree.error());
  setenv("NUPA_SYSFS", tree->c_str(), 1);
  if (!by_mount) return {};
  if (auto mounted = mount_tree(*tree); !mounted) return mounted;
  return keep_tree_fresh(*tree);
}

}  // namespace

namespace {

/// True if the dynamic loader finds a library in the system's folders or in those of LD_LIBRARY_PATH.
bool is_found(const std::string& library) {
  const char* const folders = base::text_setting("LD_LIBRARY_PATH");
  std::istringstream list(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(list, folder, ':');)
    if (::access((folder + "/" + library).c_str(), R_OK) == 0) return true;
  for (const char* folder : {"/lib", "/usr/lib", "/lib64", "/usr/lib64"})
    if (::access((std::string(folder) + "/" + library).c_str(), R_OK) == 0) return true;
  // Paths are strings in the cache, whatever the version of its format.
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string cache{std::istreambuf_iterator<char>(file), {}};
  return cache.find('/' + library + '\0') != std::string::npos;
}

/// Programs are linked to the libraries of adapters' drivers, and may run where these are not installed: then the
/// loader finds libraries without a device.
void add_missing_providers(const std::string& folder) {
  std::error_code error;
  for (const auto& provider : std::filesystem::directory_iterator(folder + "/providers", error)) {
    if (is_found("lib" + provider.path().filename().string() + ".so.1")) continue;
    const std::string before = base::text_setting("LD_LIBRARY_PATH");
    setenv("LD_LIBRARY_PATH", (before + ":" + provider.path().string()).c_str(), 1);
  }
}

}  // namespace

void enter_run_environment() {
  const std::string folder = dropin_folder();
  if (folder.empty()) return;
  // For those who load a library by its name, or need it.
  prepend("LD_LIBRARY_PATH", folder);
  add_missing_providers(folder);
  // A program that brings its own libibverbs finds it by its path or by another name. The functions of a library that
  // is preloaded come before those of the others all the same.
  for (const char* name :
       {"libnupa-preload.so", "names/librdmacm.so", "names/libibverbs.so", "librdmacm.so.1", "libibverbs.so.1"}) {
    const std::string library = folder + "/" + name;
    if (::access(library.c_str(), R_OK) == 0) prepend("LD_PRELOAD", library);
  }
}

int run(const RunOptions& options) {
  const std::string folder = dropin_folder();
  if (folder.empty()) {
    if (::access("/proc/self/exe", F_OK) != 0)
      std::fprintf(stderr, "nupa: /proc is not mounted (mount -t proc proc /proc)\n");
    else
      std::fprintf(stderr, "nupa: no drop-in libraries in %s, relative to this program (use cmake --install)\n",
                   NUPA_DROPIN_INSTALLED);
    return 1;
  }
  enter_run_environment();
  if (const auto shown = show_devices(options.mount); !shown) {
    std::fprintf(stderr, "nupa: the program does not find its devices in /sys/class/infiniband: %s\n",
                 shown.error().what());
    if (options.mount) return 1;
  }
  if (options.sockets) {
    const std::string sockets = folder + "/libnupa_sockets.so";
    if (::access(sockets.c_str(), R_OK) != 0) {
      std::fprintf(stderr, "nupa: %s: %s (--sockets needs a build with librdmacm-dev)\n", sockets.c_str(),
                   std::strerror(errno));
      return 1;
    }
    prepend("LD_PRELOAD", sockets);
  }
  if (!options.transport.empty()) setenv("NUPA_TRANSPORT", options.transport.c_str(), 1);
  if (options.explain) setenv("NUPA_EXPLAIN", "on", 1);
  if (options.verbose) {
    setenv("NUPA_LOG", "info", 0);
    std::fprintf(stderr, "nupa: running %s with libraries from %s, transport %s\n", options.command[0].c_str(),
                 folder.c_str(), transport_in_force());
  }
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  std::fprintf(stderr, "nupa: %s: %s\n", arguments[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;
}

}  // namespace nupa::cli
