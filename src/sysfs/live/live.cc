// SPDX-License-Identifier: Apache-2.0
#include "sysfs/live/live.h"

#include <fcntl.h>

#include <cerrno>

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

Result<std::vector<Entry>> describe_now() {
  const auto directory = host::RuntimeDir::open();
  if (!directory) return tl::unexpected(directory.error());
  const auto devices = core::read_devices();
  if (!devices) return tl::unexpected(devices.error());
  return describe(*devices, {core::device_attr(), core::port_attr()}, core::read_port_totals(**directory));
}

Result<void> refresh_now(const std::string& tree) {
  base::UniqueFd folder(open(tree.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return base::fail_call(errno, "cannot open ", tree);
  // Values are read under the lock that covers the files, so a later caller finds no older ones.
  progress::FileLock lock(std::move(folder));
  if (auto locked = lock.lock(progress::Deadline::in_ms(kLockMs)); !locked) return locked;
  const auto entries = describe_now();
  const Result<void> done = entries ? refresh(tree, *entries) : tl::unexpected(entries.error());
  lock.unlock();
  return done;
}

}  // namespace nupa::sysfs

int nupa_refresh_sysfs(const char* tree, const char* path) {
  if (!nupa::sysfs::may_change(path)) return 0;
  const auto done = nupa::sysfs::refresh_now(tree);
  return done ? 0 : done.error().code();
}
