// SPDX-License-Identifier: Apache-2.0
#include "cli/mounts.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/system_error.h"
#include "base/unique_fd.h"
#include "progress/descriptors.h"
#include "sysfs/live/live.h"

namespace nupa::cli {
namespace {

namespace files = std::filesystem;

constexpr int64_t kRefreshMs = 1000;

Result<void> mount_at(const std::string& from, const std::string& to) {
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return {};
  return base::fail_call(errno, "cannot mount ", from, " at ", to);
}

Result<void> write_text(const char* path, const std::string& text) {
  const base::UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  if (file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return base::fail_call(errno, "cannot write ", path);
}

/// A mount namespace in which this process may mount.
Result<void> enter_namespace() {
  const std::string user = std::to_string(geteuid());
  const std::string group = std::to_string(getegid());
  if (geteuid() == 0) {
    if (unshare(CLONE_NEWNS) != 0) return base::fail_call(errno, "cannot enter a mount namespace");
  } else {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return base::fail_call(errno, "cannot enter a user namespace");
    // The same user and group inside.
    if (auto denied = write_text("/proc/self/setgroups", "deny"); !denied) return denied;
    if (auto mapped = write_text("/proc/self/uid_map", user + " " + user + " 1"); !mapped) return mapped;
    if (auto mapped = write_text("/proc/self/gid_map", group + " " + group + " 1"); !mapped) return mapped;
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return base::fail_call(errno, "cannot keep mounts in this namespace");
  return {};
}

/// An empty file, folder or link of the kind of `from`, at `to`; a link is complete by that.
Result<bool> make_place(const files::path& from, const files::path& to) {
  std::error_code error;
  const files::file_status status = files::symlink_status(from, error);
  const bool is_link = files::is_symlink(status);
  if (is_link) files::copy_symlink(from, to, error);
  if (files::is_directory(status)) files::create_directory(to, error);
  if (error) return base::fail_call(error.value(), "cannot make ", to.string());
  if (is_link || files::is_directory(status)) return !is_link;
  if (std::ofstream file(to); !file) return base::fail_call(errno, "cannot make ", to.string());
  return true;
}

/// Makes `place` a copy of `from`: a link, or a mount.
Result<void> show_at(const files::path& from, const files::path& place) {
  const auto needs_mount = make_place(from, place);
  if (!needs_mount) return tl::unexpected(needs_mount.error());
  return *needs_mount ? mount_at(from.string(), place.string()) : Result<void>();
}

std::vector<files::path> entries_of(const files::path& folder) {
  std::vector<files::path> entries;
  std::error_code error;
  for (const files::directory_entry& entry : files::directory_iterator(folder, error)) entries.push_back(entry.path());
  return entries;
}

bool is_present(const files::path& path) {
  std::error_code error;
  return files::exists(files::symlink_status(path, error));
}

/// Mounts a folder in memory over `folder`, with all entries that the folder had. `old` is an empty folder, used
/// meanwhile.
Result<void> make_writable(const files::path& folder, const files::path& old) {
  if (auto kept = mount_at(folder.string(), old.string()); !kept) return kept;
  // `old` may be below `folder`.
  const base::UniqueFd kept(open(old.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!kept) return base::fail_call(errno, "cannot open ", old.string());
  const files::path before = "/proc/self/fd/" + std::to_string(kept.get());
  if (mount("nupa", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") != 0)
    return base::fail_call(errno, "cannot mount over ", folder.string());
  for (const files::path& entry : entries_of(before))
    if (auto shown = show_at(entry, folder / entry.filename()); !shown && shown.error().code() != ENOENT) return shown;
  umount2(before.c_str(), MNT_DETACH);
  return {};
}

/// Adds the entries of `tree` to those of `folder`.
Result<void> merge(const files::path& tree, const files::path& folder, const files::path& old) {
  const std::vector<files::path> entries = entries_of(tree);
  const auto is_new = [&](const files::path& entry) { return !is_present(folder / entry.filename()); };
  if (std::any_of(entries.begin(), entries.end(), is_new))
    if (auto writable = make_writable(folder, old); !writable) return writable;
  for (const files::path& entry : entries) {
    const files::path place = folder / entry.filename();
    const bool both_are_folders = files::is_directory(entry) && !files::is_symlink(entry) && files::is_directory(place);
    // If the kernel has RDMA devices, they come first.
    if (!both_are_folders && is_present(place)) continue;
    if (auto done = both_are_folders ? merge(entry, place, old) : show_at(entry, place); !done) return done;
  }
  return {};
}

}  // namespace

Result<void> mount_tree(const std::string& tree) {
  const std::string old = tree + "/old";
  if (auto entered = enter_namespace(); !entered) return entered;
  if (mkdir(old.c_str(), 0700) != 0 && errno != EEXIST) return base::fail_call(errno, "cannot make ", old);
  for (const char* top : {"/sys", "/dev"})
    if (auto merged = merge(tree + top, top, old); !merged) return merged;
  return {};
}

Result<void> keep_tree_fresh(const std::string& tree) {
  const base::UniqueFd program(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!program) return base::fail_call(errno, "cannot watch this process");
  const pid_t child = fork();
  if (child < 0) return base::fail_call(errno, "cannot start a process");
  if (child > 0) {
    waitpid(child, nullptr, 0);
    return {};
  }
  // Its child belongs to no one, so that the program has no child that it does not know.
  setsid();
  if (fork() != 0) _exit(0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int standard = 0; standard <= STDERR_FILENO; ++standard) dup2(null, standard);
  pollfd ends{program.get(), POLLIN, 0};
  while (ends.revents == 0) {
    // A failure leaves the files as they are until the next time.
    [[maybe_unused]] const auto done = sysfs::refresh_now(tree, true);
    progress::wait_descriptors({&ends, 1}, progress::Deadline::in_ms(kRefreshMs), progress::Signals::kIgnore);
  }
  _exit(0);
}

}  // namespace nupa::cli
