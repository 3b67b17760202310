// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Devices: the entry to the verbs. list_devices() and open_device() find and open one, and Device makes all other
/// objects.
#include <nupa/completion.h>
#include <nupa/export.h>
#include <nupa/memory.h>
#include <nupa/queue_pair.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nupa {

/// An asynchronous event (IBTA 11.6.3). The object that the event concerns is set, the others are null.
struct AsyncEvent {
  EventType type = EventType::kDeviceFatal;  ///< kind of event
  CompletionQueue* cq = nullptr;             ///< kCqErr
  QueuePair* qp = nullptr;                   ///< kQp..., kCommEst, kSqDrained
  SharedReceiveQueue* srq = nullptr;         ///< kSrqLimitReached
  int port_num = 0;                          ///< port of the device
};

/// One open of a device: the factory of everything else. A process may open several devices, and each more than once.
/// Keys, numbers and queues of all opens are one space. Any thread may call any function.
///
/// A child of fork() opens devices itself. The objects that it inherits belong to its parent: functions that make or
/// change something fail there with ENODEV, posts with EINVAL, and completion queues are empty. close() and destructors
/// free only the child's copy.
///
/// Every function that makes an object may also fail with ENODEV for that reason, and with ENOMEM or EFBIG where a
/// limit of the process is reached (address space, file size).
class Device {
 public:
  /// Calls close(). A device with open objects is leaked, with an error in the log.
  virtual ~Device() = default;

  /// @name Queries
  /// @{

  /// @return The name that open_device() was called with.
  virtual const std::string& name() const = 0;
  /// Returns limits and abilities (IBTA 11.2.1.2).
  /// @return The attributes. They do not change.
  virtual DeviceAttr query() const = 0;
  /// Returns the attributes of a port (IBTA 11.2.1.4).
  /// @param port_num 1
  /// @return The attributes, or an Error:
  ///   - EINVAL: `port_num` is not 1.
  ///   - Others: the kernel does not return the MTU of the device's interfaces.
  virtual Result<PortAttr> query_port(uint8_t port_num) const = 0;
  /// Returns an entry of the GID table. Index 0 is the link-local address. Indices 1 and 3 are the first IPv4 address
  /// if there is one. Other IPv4 addresses follow, then IPv6 addresses, and those that lead to no other network.
  /// Addresses are those of the time when the process first opened a device.
  /// @param port_num 1
  /// @param index 0 to PortAttr::gid_tbl_len - 1
  /// @return The entry, or an Error:
  ///   - EINVAL: there is no such port or index.
  ///   - ENODATA: the entry is empty.
  virtual Result<GidEntry> query_gid(uint8_t port_num, uint32_t index) const = 0;
  /// Returns an entry of the P_Key table (IBTA 10.9.2).
  /// @param port_num 1
  /// @param index 0
  /// @return The P_Key in network byte order, 0xffff, or an Error of EINVAL: there is no such port or index.
  virtual Result<uint16_t> query_pkey(uint8_t port_num, uint32_t index) const = 0;
  /// Returns the group of processes that this one can share memory with (QueuePair::map_remote()).
  /// @return The group. All zeros: the process shares memory with no other one.
  virtual MemoryDomain memory_domain() const = 0;
  /// Reads the clock that stamps completions.
  /// @return Ticks; clock_khz() is their frequency.
  virtual uint64_t clock() const = 0;
  /// Returns the frequency of clock(). If the processor does not report it, the first call in a process measures it for
  /// half a millisecond, to about one part in ten thousand.
  /// @return Ticks per millisecond (kHz).
  virtual uint64_t clock_khz() const = 0;
  /// @}

  /// @name Memory
  /// @{

  /// Makes a protection domain.
  /// @return The domain, or an Error (see the class).
  virtual Result<std::unique_ptr<ProtectionDomain>> alloc_pd() = 0;
  /// Registers memory of the program (IBTA 11.2.8.2). With access::kOnDemand alone, `addr` null and `length` SIZE_MAX
  /// the local key stands for all memory of the process at any time, to send from. With access::kOnDemand the memory
  /// may also be mapped later. The memory must stay mapped as long as it is used through the region.
  /// @param pd domain that the region belongs to
  /// @param addr first byte, at any alignment
  /// @param length bytes, not 0
  /// @param iova address of the first byte in Sge::addr and SendWr::remote_addr; with access::kZeroBased it is 0
  ///   instead
  /// @param access_flags access bits; remote write and atomics need access::kLocalWrite as well
  /// @return The region, or an Error (see the class):
  ///   - EINVAL: the flags are unknown or contradictory, `length` is 0, or a range leaves the address space.
  ///   - EFAULT: memory is not mapped, or not writable where rights to write are asked for.
  ///   - ENOMEM: all keys of the process are in use, or a limit of the process.
  ///   - EFBIG: RLIMIT_FSIZE is too small.
  virtual Result<std::unique_ptr<MemoryRegion>> reg_mr(ProtectionDomain& pd, void* addr, size_t length, uint64_t iova,
                                                       uint32_t access_flags) = 0;
  /// Registers a part of a file or DMA buffer, which it maps.
  /// @param pd domain that the region belongs to
  /// @param offset first byte in the file, whole pages
  /// @param length bytes, whole pages, not 0
  /// @param iova address of the first byte for the keys
  /// @param fd a descriptor that mmap() can map as shared; it may be closed afterwards
  /// @param access_flags as in reg_mr()
  /// @return The region, or an Error (see the class):
  ///   - EINVAL: the flags, or `offset` or `length` is not whole pages.
  ///   - ENOMEM: all keys of the process are in use.
  ///   - EOPNOTSUPP: `fd` is negative. Programs ask so whether a device registers the memory of accelerators.
  ///   - Others: errors of mmap(), such as EACCES, EBADF and ENODEV.
  virtual Result<std::unique_ptr<MemoryRegion>> reg_dmabuf_mr(ProtectionDomain& pd, uint64_t offset, size_t length,
                                                              uint64_t iova, int fd, uint32_t access_flags) = 0;
  /// Allocates and registers memory: zeroed whole pages at MemoryRegion::addr(), which are freed with the region. The
  /// peer of a queue pair maps it where shared memory leads there, also in processes whose other memory cannot be
  /// shared (docs/design/memory-registration.md).
  /// @param pd domain that the region belongs to
  /// @param length bytes, not 0
  /// @param access_flags as in reg_mr(), without access::kZeroBased
  /// @param source where the memory is taken from
  /// @return The region, or an Error (see the class):
  ///   - EINVAL: `length` is 0, or the flags are unknown or contradictory.
  ///   - ENOMEM: all keys of the process are in use, or a limit of the process.
  ///   - EFBIG: RLIMIT_FSIZE is too small.
  virtual Result<std::unique_ptr<MemoryRegion>> alloc_mr(ProtectionDomain& pd, size_t length, uint32_t access_flags,
                                                         MemorySource source = MemorySource::kProcess) = 0;
  /// Makes a null region: writes to it are discarded, and reads return zeros, at every address. For local access only.
  /// @param pd domain that the region belongs to
  /// @return The region, or an Error (see the class). ENOMEM: no address space, or all keys are in use.
  virtual Result<std::unique_ptr<MemoryRegion>> alloc_null_mr(ProtectionDomain& pd) = 0;
  /// Registers a part of device memory.
  /// @param pd domain that the region belongs to
  /// @param dm device memory, which can be closed after the region
  /// @param offset first byte in `dm`
  /// @param length bytes
  /// @param access_flags as in reg_mr(), with access::kZeroBased
  /// @return The region, or an Error (see the class):
  ///   - EINVAL: the flags are wrong or lack access::kZeroBased, or the range leaves the device memory.
  ///   - ENOMEM: all keys of the process are in use.
  virtual Result<std::unique_ptr<MemoryRegion>> reg_dm_mr(ProtectionDomain& pd, DeviceMemory& dm, uint64_t offset,
                                                          size_t length, uint32_t access_flags) = 0;
  /// Changes a region of reg_mr(). Its key stays. No request may use the region meanwhile.
  /// @param region the region
  /// @param mask what to change: mr_attr bits, at least one
  /// @param pd the new domain, not null; only read with mr_attr::kPd
  /// @param addr first byte of the new memory, not null; only read with mr_attr::kTranslation
  /// @param length bytes of the new memory, not 0; only read with mr_attr::kTranslation
  /// @param access_flags new access bits, as in reg_mr(); only read with mr_attr::kAccess
  /// @return 0 or an errno value; after an error the region is as before:
  ///   - EINVAL: no or another bit is set, or an argument that a bit needs is missing or wrong.
  ///   - EBUSY: a memory window is bound to the region.
  ///   - EOPNOTSUPP: the region is not one of reg_mr().
  ///   - EFAULT, ENOMEM, EFBIG: as reg_mr().
  ///   - ENODEV: a parent process opened the device.
  virtual int rereg_mr(MemoryRegion& region, uint32_t mask, ProtectionDomain* pd, void* addr, size_t length,
                       uint32_t access_flags) = 0;
  /// Prefetches pages of regions, as the verbs ABI's ibv_advise_mr().
  /// @param pd domain of the regions
  /// @param advice what to do
  /// @param flags advise_flag bits
  /// @param list pieces of regions, not null
  /// @param count entries of `list`, not 0
  /// @return 0 or an errno value; pieces before the failed one have been prefetched:
  ///   - EINVAL: another advice or flag, an empty list, or a region of another domain.
  ///   - ENOENT: a local key does not exist.
  ///   - EFAULT: a piece leaves its region, or its memory is not mapped as asked.
  ///   - EPERM: MrAdvice::kPrefetchWrite for a region without access::kLocalWrite.
  ///   - ENODEV: a parent process opened the device.
  virtual int advise_mr(ProtectionDomain& pd, MrAdvice advice, uint32_t flags, const Sge* list, uint32_t count) = 0;
  /// Makes a memory window (IBTA 10.6.7).
  /// @param pd domain that the window belongs to
  /// @param type type of the window
  /// @return The window, or an Error (see the class):
  ///   - EINVAL: another type.
  ///   - ENOMEM: all keys of the process are in use.
  virtual Result<std::unique_ptr<MemoryWindow>> alloc_mw(ProtectionDomain& pd, MwType type) = 0;
  /// Allocates device memory. A child of fork() may call it on an inherited device.
  /// @param length bytes, 1 to DeviceAttr::max_dm_size
  /// @param log_align logarithm to base 2 of the alignment, at most 12 (a page)
  /// @return The memory, zeroed, or an Error:
  ///   - EINVAL: `length` is 0, or the alignment is larger than a page.
  ///   - ENOMEM: `length` is larger than DeviceAttr::max_dm_size, or a limit of the process.
  ///   - EFBIG: RLIMIT_FSIZE is too small.
  virtual Result<std::unique_ptr<DeviceMemory>> alloc_dm(size_t length, uint32_t log_align) = 0;
  /// @}

  /// @name Queues
  /// @{

  /// Makes a completion channel. It takes two descriptors.
  /// @return The channel, or an Error (see the class):
  ///   - EMFILE, ENFILE: no descriptor is left.
  ///   - ENOSPC: all 65536 channels of the process are in use.
  virtual Result<std::unique_ptr<CompletionChannel>> create_channel() = 0;
  /// Makes a completion queue.
  /// @param options sizes and channel
  /// @return The queue, or an Error (see the class):
  ///   - EINVAL: `entries` is 0 or larger than DeviceAttr::max_cqe.
  ///   - ENOMEM: all completion queues of the process are in use, or a limit of the process.
  virtual Result<std::unique_ptr<CompletionQueue>> create_cq(const CqOptions& options) = 0;
  /// Makes a shared receive queue.
  /// @param pd domain that the queue belongs to
  /// @param options sizes; for kXrc also domain and completion queue
  /// @return The queue, or an Error (see the class):
  ///   - EINVAL: a size is out of range, or kXrc has no domain or no completion queue.
  ///   - ENOMEM: all shared receive queues of the process are in use, or a limit of the process.
  virtual Result<std::unique_ptr<SharedReceiveQueue>> create_srq(ProtectionDomain& pd, const SrqOptions& options) = 0;
  /// Makes a queue pair in RESET.
  /// @param pd domain that the queue pair belongs to, not null; QpType::kXrcRecv: not used
  /// @param options type, queues and sizes; max_inline_data becomes at least 16 bytes times max_send_sge
  /// @return The queue pair, or an Error (see the class):
  ///   - EOPNOTSUPP: another type.
  ///   - EINVAL: a domain or queue that the type needs is missing, the type takes no shared receive queue, or a size is
  ///     larger than DeviceAttr allows.
  ///   - ENOMEM: all queue pairs of the process are in use, or a limit of the process.
  ///   - ENOSPC: the process needs a further slot, and none is free.
  ///   - EBUSY: the runtime directory stays locked.
  ///   - Others: errors of sockets, where a further slot needs a UDP port.
  virtual Result<std::unique_ptr<QueuePair>> create_qp(ProtectionDomain* pd, const QpOptions& options) = 0;
  /// Opens a further handle on an XRC_RECV queue pair that was made in the same domain and the same process.
  /// @param xrcd domain of the queue pair
  /// @param qp_num number of the queue pair
  /// @param user_context any value; QueuePair::user_context() of the handle returns it
  /// @return The handle, or an Error (see the class):
  ///   - EOPNOTSUPP: another process has the queue pair.
  ///   - EINVAL: the domain has no such XRC_RECV queue pair.
  virtual Result<std::unique_ptr<QueuePair>> open_qp(XrcDomain& xrcd, uint32_t qp_num, void* user_context) = 0;
  /// Makes an address handle (IBTA 11.2.2).
  /// @param pd domain that the handle belongs to
  /// @param vector the destination
  /// @return The handle, or an Error (see the class). EINVAL: `port_num` is not 1, the address is neither global nor
  ///   this host's local identifier, or the source GID is empty.
  virtual Result<std::unique_ptr<AddressHandle>> create_ah(ProtectionDomain& pd, const AddressVector& vector) = 0;
  /// Opens an XRC domain (IBTA annex A14). The processes of a user that open the same file share the domain.
  /// @param fd a descriptor of the file that names the domain by its inode; negative: a private domain
  /// @param oflags O_CREAT and O_EXCL as in open(); a private domain needs O_CREAT
  /// @return The domain, or an Error (see the class):
  ///   - EINVAL: another flag, or a private domain without O_CREAT.
  ///   - EEXIST: O_EXCL is given, and a process has the domain open.
  ///   - EBUSY: the runtime directory stays locked.
  ///   - Others: errors of fstat(), such as EBADF, and of the runtime directory.
  virtual Result<std::unique_ptr<XrcDomain>> open_xrcd(int fd, int oflags) = 0;
  /// @}

  /// @name Asynchronous events
  /// @{

  /// Returns the descriptor to poll. It is readable while an event waits. O_NONBLOCK may be set on it.
  /// @return The descriptor, which belongs to the device.
  virtual int async_fd() const = 0;
  /// Takes one event. It blocks unless O_NONBLOCK is set on async_fd().
  /// @param taken if not empty, it is called with the event before another thread's close() of the object that the
  ///   event names can return; it must not call the device
  /// @return The event, or an Error:
  ///   - EAGAIN: no event waits, and async_fd() is non-blocking.
  ///   - EINTR: a signal handler ran that was installed without SA_RESTART.
  ///   - EBADF: async_fd() was closed.
  ///   - ENODEV: a parent process opened the device.
  virtual Result<AsyncEvent> next_event(const std::function<void(const AsyncEvent&)>& taken = {}) = 0;
  /// @}

  /// Closes this open of the device.
  /// @return 0, or EBUSY: objects of it are open.
  virtual int close() = 0;
};

// ---- finding and opening devices ------------------------------------------------------------------------------------

/// A device that this process can open.
struct DeviceName {
  std::string name;    ///< for open_device(): "nupa0"
  uint64_t node_guid;  ///< network byte order
  /// Addresses of the other hosts of a pool, if the device leads to the pool alone. Empty: it leads to networks. Those
  /// devices lead to the pool as well.
  std::vector<Gid> neighbours = {};
};
/// Lists the devices that this process can open: one for all interfaces, or those of NUPA_DEVICES. Any thread.
/// @return The devices. Empty: NUPA_DEVICES is wrong, and a warning in the log names the reason.
NUPA_EXPORT std::vector<DeviceName> list_devices();

/// Opens a device. The first open of a process joins the runtime directory and starts the library's threads. Any
/// thread.
/// @param name a name of list_devices()
/// @return The device, or an Error:
///   - ENODEV: there is no device of this name, or NUPA_DEVICES names an interface that does not exist.
///   - EINVAL: a setting in the environment is wrong.
///   - EACCES, EPERM: other users have rights to the runtime directory, or it belongs to another user.
///   - EBUSY: the runtime directory stays locked.
///   - ENOSPC: no process slot is free.
///   - EADDRINUSE: UDP port 4791, which standard peers need, is taken.
///   - EMFILE, ENFILE, ENOMEM, EFBIG, EAGAIN: a limit of the process or system.
///   - Others: errors of files and sockets.
NUPA_EXPORT Result<std::unique_ptr<Device>> open_device(const std::string& name);

/// Sets the lowest number for descriptors of channels and devices that are made later, for programs that keep tables by
/// descriptor number. If the limit of open files is lower, descriptors get any number. Any thread.
/// @param lowest the lowest number; 0: any
NUPA_EXPORT void set_lowest_descriptor(int lowest);

}  // namespace nupa
