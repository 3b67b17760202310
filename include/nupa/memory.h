#pragma once
#include <nupa/result.h>
#include <nupa/types.h>

#include <memory>

namespace nupa {

/// Common to all objects below: made by a factory, given back by close(). close() returns 0, or EBUSY while another
/// object still uses this one (it then stays as it was). Deleting an object closes it; one that is still in use is
/// then leaked with an error in the log, never torn from under its users.
class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;
  virtual uint32_t handle() const = 0;
  virtual int close() = 0;
};

/// A registered piece of memory (IBTA 10.6). Remote keys and local keys are the same number.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual void* addr() const = 0;
  virtual uint64_t length() const = 0;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
  virtual uint32_t handle() const = 0;
  virtual int close() = 0;
};

/// What a bind gives away: a part of `region`, bytes from `addr` (an address, or an offset with
/// access::kZeroBased), with rights `access_flags`.
struct MwBindInfo {
  MemoryRegion* region = nullptr;
  uint64_t addr = 0;
  uint64_t length = 0;
  uint32_t access_flags = 0;
};

enum class MwType : uint32_t { kType1 = 1, kType2 = 2 };

/// A memory window (IBTA 10.6.7). rkey() changes with each bind of a type 1 window, when the bind is executed.
class MemoryWindow {
 public:
  virtual ~MemoryWindow() = default;
  virtual uint32_t rkey() const = 0;
  virtual uint32_t handle() const = 0;
  virtual MwType type() const = 0;
  virtual int close() = 0;
};

/// Memory that belongs to the device (here: shared from the start), in bytes from 0.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual uint64_t length() const = 0;
  virtual uint32_t handle() const = 0;
  /// Copies `length` bytes to offset. 0; EFAULT: the range leaves the allocation; EINVAL: offset or length is not a
  /// multiple of 4.
  virtual int copy_to(uint64_t offset, const void* from, size_t length) = 0;
  virtual int copy_from(void* to, uint64_t offset, size_t length) = 0;
  virtual int close() = 0;
};

/// Where a datagram goes (IBTA 11.2.2).
class AddressHandle {
 public:
  virtual ~AddressHandle() = default;
  virtual const AddressVector& vector() const = 0;
  virtual uint32_t handle() const = 0;
  virtual int close() = 0;
};

/// What XRC queue pairs and shared receive queues of several processes have in common (IBTA annex A14).
class XrcDomain {
 public:
  virtual ~XrcDomain() = default;
  virtual int close() = 0;
};

}  // namespace nupa
