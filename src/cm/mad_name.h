#pragma once
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "cm/engine/engine.h"

namespace nupa::cm {

/// A name in this network namespace at which a process takes messages of the communication manager that others got for
/// it: "slot/17", or a service with an address or a family of them. It is an abstract UNIX datagram socket: the kernel
/// gives a name to one process of all users, and takes it back when that ends.
class MadName {
 public:
  static std::string of_slot(uint32_t slot);
  static std::string of_service(uint64_t service_id, const Gid& address);
  enum class Family : uint8_t { kIpv4, kIpv6, kNone };
  static std::string of_service(uint64_t service_id, Family family);

  /// EADDRINUSE: somebody has the name; errors of sockets.
  static Result<MadName> take(const std::string& name);
  static bool is_taken(const std::string& name);

  int fd() const { return fd_.get(); }
  struct Relayed {
    Way way;  ///< back to the sender
    Mad mad;
  };
  /// One that came; nothing: there is none.
  std::optional<Relayed> receive() const;

 private:
  explicit MadName(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

/// Passes messages on. Any thread.
class MadRelay {
 public:
  /// Errors of sockets.
  static Result<MadRelay> open();
  /// False: nobody has the name.
  bool pass(const std::string& name, const Way& way, const Mad& mad) const;

 private:
  explicit MadRelay(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

}  // namespace nupa::cm
