// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Protection domains, memory regions and windows, device memory, address handles and XRC domains.
///
/// Device makes all of these objects, and close() gives them back. close() returns EBUSY while another object uses this
/// one, which then stays as it was. The destructor calls close(); an object that is still in use is then leaked, with
/// an error in the log, and its users keep working. Any thread may call any function.
#include <nupa/result.h>
#include <nupa/types.h>

#include <memory>

namespace nupa {

/// A protection domain: queue pairs, regions, windows and address handles work together only within one.
/// Device::alloc_pd() makes it.
class ProtectionDomain {
 public:
  /// Calls close().
  virtual ~ProtectionDomain() = default;
  /// @return The domain's number, unique among the domains of the process.
  virtual uint32_t handle() const = 0;
  /// Closes the domain.
  /// @return 0, or EBUSY: an object of the domain is open.
  virtual int close() = 0;
};

/// A registered piece of memory (IBTA 10.6). Its remote key and its local key are the same number. Device::reg_mr() and
/// the functions beside it make it.
class MemoryRegion {
 public:
  /// Calls close().
  virtual ~MemoryRegion() = default;
  /// @return Address of the first byte in this process.
  virtual void* addr() const = 0;
  /// @return Length in bytes.
  virtual uint64_t length() const = 0;
  /// @return The key for Sge::lkey.
  virtual uint32_t lkey() const = 0;
  /// @return The key to send to the peer, for SendWr::rkey.
  virtual uint32_t rkey() const = 0;
  /// @return The region's number, unique among the regions and windows of the process.
  virtual uint32_t handle() const = 0;
  /// Deregisters the memory. When it returns, no peer accesses the memory through the key any more.
  /// @return 0, or EBUSY: a memory window is bound to the region.
  virtual int close() = 0;
};

/// The attributes that Device::rereg_mr() may change, one bit each (IBTA 11.2.8.6, Reregister Memory Region).
namespace mr_attr {
constexpr uint32_t kTranslation = 1u << 0;  ///< the memory
constexpr uint32_t kPd = 1u << 1;           ///< the protection domain
constexpr uint32_t kAccess = 1u << 2;       ///< the access rights
}  // namespace mr_attr

/// Where Device::alloc_mr() takes memory from.
enum class MemorySource : uint8_t {
  kProcess = 0,  ///< memory of this process
  /// Memory that a transport lends because data of peers gets into it by one copy fewer: that of a pool whose hosts
  /// have coherent caches (docs/design/pool.md). Memory of this process if no transport lends any or it has no room.
  kTransport = 1,
};

/// The ways in which Device::advise_mr() prefetches pages.
enum class MrAdvice : uint32_t {
  kPrefetch = 0,        ///< maps them for reading
  kPrefetchWrite = 1,   ///< maps them for writing
  kPrefetchNoFault = 2  ///< takes no page faults: only the arguments are checked
};

/// Flags of Device::advise_mr(), one bit each.
namespace advise_flag {
constexpr uint32_t kFlush = 1u << 0;  ///< the call returns when it is done, which is so without the flag, too
}  // namespace advise_flag

/// The arguments of a bind (IBTA 10.6.7.2): a part of a region, and the rights that the window gives to it.
struct MwBindInfo {
  MemoryRegion* region = nullptr;  ///< a region with access::kMwBind; may be null if `length` is 0
  uint64_t addr = 0;               ///< first byte: an address, or an offset in a region with access::kZeroBased
  uint64_t length = 0;             ///< bytes; 0 unbinds a window of type 1
  uint32_t access_flags = 0;       ///< rights: access bits; writing rights need kLocalWrite of the region
};

/// The types of memory windows (IBTA 10.6.7.2).
enum class MwType : uint32_t {
  kType1 = 1,  ///< may be bound again and again; each bind changes the key
  kType2 = 2   ///< is bound once to one queue pair, and then invalidated
};

/// A memory window (IBTA 10.6.7). Device::alloc_mw() makes it, and a request with Opcode::kBindMw binds it.
class MemoryWindow {
 public:
  /// Calls close().
  virtual ~MemoryWindow() = default;
  /// Returns the key. It changes when a bind is executed.
  /// @return The key to send to the peer.
  virtual uint32_t rkey() const = 0;
  /// @return The window's number, unique among the regions and windows of the process.
  virtual uint32_t handle() const = 0;
  /// @return The type that the window was made with.
  virtual MwType type() const = 0;
  /// Unbinds and closes the window. When it returns, no peer accesses memory through the window any more.
  /// @return 0.
  virtual int close() = 0;
};

/// Memory of the device: zeroed memory that is shared with peers from the start. On the device of a pool it lies in the
/// pool. Device::alloc_dm() makes it, and offsets count from 0.
class DeviceMemory {
 public:
  /// Calls close().
  virtual ~DeviceMemory() = default;
  /// @return Length in bytes.
  virtual uint64_t length() const = 0;
  /// @return The object's number.
  virtual uint32_t handle() const = 0;
  /// Copies bytes into the device memory.
  /// @param offset where to copy to: bytes, a multiple of 4
  /// @param from `length` bytes to copy
  /// @param length bytes, a multiple of 4
  /// @return 0 or an errno value:
  ///   - EINVAL: `offset` or `length` is not a multiple of 4.
  ///   - EFAULT: the range leaves the allocation.
  virtual int copy_to(uint64_t offset, const void* from, size_t length) = 0;
  /// Copies bytes out of the device memory.
  /// @param to room for `length` bytes
  /// @param offset where to copy from: bytes, a multiple of 4
  /// @param length bytes, a multiple of 4
  /// @return As copy_to().
  virtual int copy_from(void* to, uint64_t offset, size_t length) = 0;
  /// Frees the memory.
  /// @return 0, or EBUSY: a region was registered in it (Device::reg_dm_mr()).
  virtual int close() = 0;
};

/// The destination of datagrams (IBTA 11.2.2). Device::create_ah() makes it.
class AddressHandle {
 public:
  /// Calls close().
  virtual ~AddressHandle() = default;
  /// @return The address that the handle was made with.
  virtual const AddressVector& vector() const = 0;
  /// @return The handle's number.
  virtual uint32_t handle() const = 0;
  /// Closes the handle. Requests that were posted with it are not affected.
  /// @return 0.
  virtual int close() = 0;
};

/// A domain that XRC queue pairs and shared receive queues of several processes share (IBTA annex A14).
/// Device::open_xrcd() makes it.
class XrcDomain {
 public:
  /// Calls close().
  virtual ~XrcDomain() = default;
  /// Closes this process's handle on the domain.
  /// @return 0, or EBUSY: a queue pair or shared receive queue of this handle is open.
  virtual int close() = 0;
};

}  // namespace nupa
