// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "cm/engine/engine.h"

namespace nupa::cm {

/// A name in this network namespace where a process takes messages of the communication manager that other processes
/// pass on. It is "slot/17", or a service with an address or a family of addresses. It is the name of an abstract UNIX
/// datagram socket: the kernel gives a name to only one process of all users, and releases it when that process exits.
class MadName {
 public:
  static std::string of_slot(uint32_t slot);
  static std::string of_service(uint64_t service_id, const Gid& address);
  enum class Family : uint8_t { kIpv4, kIpv6, kNone };
  static std::string of_service(uint64_t service_id, Family family);

  /// Returns EADDRINUSE if another process has the name, or the errors of sockets.
  static Result<MadName> take(const std::string& name);
  static bool is_taken(const std::string& name);

  int fd() const { return fd_.get(); }
  struct Relayed {
    Way way;  ///< the way back to the sender
    Mad mad;
  };
  /// Returns a message that has arrived, or nothing.
  std::optional<Relayed> receive() const;

 private:
  explicit MadName(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

/// Passes messages on to other processes. Any thread.
class MadRelay {
 public:
  /// Returns the errors of sockets.
  static Result<MadRelay> open();
  /// Returns false if no process has the name.
  bool pass(const std::string& name, const Way& way, const Mad& mad) const;

 private:
  explicit MadRelay(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

}  // namespace nupa::cm
