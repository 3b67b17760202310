// SPDX-License-Identifier: Apache-2.0
#include "sysfs/live/live.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/system_error.h"
#include "core/device_attr.h"
#include "core/device_table.h"
#include "core/port_totals.h"
#include "host/runtime_dir.h"
#include "progress/file_lock.h"

namespace nupa::sysfs {

namespace {

constexpr int64_t kLockMs = 200;

}  // namespace

Result<std::vector<Entry>> describe_now(bool counts) {
  const auto directory = host::RuntimeDir::open();
  if (!directory) return tl::unexpected(directory.error());
  const auto devices = core::read_devices();
  if (!devices) return tl::unexpected(devices.error());
  return describe(*devices, {core::device_attr(), core::port_attr()},
                  counts ? core::read_port_totals(**directory) : std::vector<shm::PortSums>{});
}

Result<void> refresh_now(const std::string& tree, bool counts) {
  base::UniqueFd folder(open(tree.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return base::fail_call(errno, "cannot open ", tree);
  // Values are read under the lock that covers the files, so a later caller finds no older ones.
  progress::FileLock lock(std::move(folder));
  if (auto locked = lock.lock(progress::Deadline::in_ms(kLockMs)); !locked) return locked;
  auto entries = describe_now(counts);
  if (entries && !counts) std::erase_if(*entries, [](const Entry& entry) { return entry.kind == Kind::kCounter; });
  const Result<void> done = entries ? refresh(tree, *entries) : tl::unexpected(entries.error());
  lock.unlock();
  return done;
}

}  // namespace nupa::sysfs

int nupa_refresh_sysfs(const char* tree, const char* path) {
  if (!nupa::sysfs::may_change(path)) return 0;
  // Programs read many addresses, and a process that is stopped must not delay each.
  const bool counts = std::strstr(path, "counters") != nullptr;
  const auto done = nupa::sysfs::refresh_now(tree, counts);
  return done ? 0 : done.error().code();
}
