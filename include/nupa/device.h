#pragma once
#include <nupa/completion.h>
#include <nupa/export.h>
#include <nupa/memory.h>
#include <nupa/queue_pair.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nupa {

/// What happened outside the flow of completions. `cq`, `qp` or `srq` is set as the type says.
struct AsyncEvent {
  EventType type = EventType::kDeviceFatal;
  CompletionQueue* cq = nullptr;
  QueuePair* qp = nullptr;
  SharedReceiveQueue* srq = nullptr;
  int port_num = 0;
};

/// One opened device: the factory of everything else. A process may open several, and each more than once; keys,
/// numbers and queues of all opens are one space. All calls from any thread.
///
/// A child of fork() opens devices of its own. What it inherits is its parent's: calls that make or change something
/// fail there with ENODEV, posts with EINVAL, completion queues are empty. close() and destructors free the child's
/// copy alone.
class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& name() const = 0;
  virtual DeviceAttr query() const = 0;
  /// EINVAL: port_num is not 1.
  virtual Result<PortAttr> query_port(uint8_t port_num) const = 0;
  /// EINVAL: no such port or index; ENODATA: the entry is empty.
  virtual Result<GidEntry> query_gid(uint8_t port_num, uint32_t index) const = 0;
  virtual Result<uint16_t> query_pkey(uint8_t port_num, uint32_t index) const = 0;  ///< network byte order
  /// With whom this process can share memory (QueuePair::map_remote()); zeros: with nobody.
  virtual MemoryDomain memory_domain() const = 0;
  /// Raw ticks of the clock that stamps completions; core_clock_khz tells their length.
  virtual uint64_t clock() const = 0;

  virtual Result<std::unique_ptr<ProtectionDomain>> alloc_pd() = 0;
  /// Registers [addr, addr+length). Keys name it from `iova` on (access::kZeroBased: from 0). With access::kOnDemand
  /// alone, addr null and length SIZE_MAX its lkey stands for all memory of the process at any time, to be sent from.
  /// EINVAL: flags; EFAULT: not mapped, or not writable though asked; ENOMEM, EFBIG: a limit of the process.
  virtual Result<std::unique_ptr<MemoryRegion>> reg_mr(ProtectionDomain& pd, void* addr, size_t length, uint64_t iova,
                                                       uint32_t access_flags) = 0;
  /// As reg_mr for `length` bytes from `offset` of what `fd` gives when mapped.
  virtual Result<std::unique_ptr<MemoryRegion>> reg_dmabuf_mr(ProtectionDomain& pd, uint64_t offset, size_t length,
                                                              uint64_t iova, int fd, uint32_t access_flags) = 0;
  /// New zeroed memory, whole pages at addr(), that is the region's and goes with it. The other end of a queue pair
  /// maps it where shared memory leads there, also in processes whose own memory cannot be shared (docs/memory.md).
  /// EINVAL: length 0, or flags (access::kZeroBased among them); ENOMEM, EFBIG: a limit of the process.
  virtual Result<std::unique_ptr<MemoryRegion>> alloc_mr(ProtectionDomain& pd, size_t length,
                                                         uint32_t access_flags) = 0;
  /// Writes to it are thrown away, reads give zeros. Local access only.
  virtual Result<std::unique_ptr<MemoryRegion>> alloc_null_mr(ProtectionDomain& pd) = 0;
  virtual Result<std::unique_ptr<MemoryRegion>> reg_dm_mr(ProtectionDomain& pd, DeviceMemory& dm, uint64_t offset,
                                                          size_t length, uint32_t access_flags) = 0;
  /// flags: 1 translation, 2 protection domain, 4 access. On failure the region is as before.
  virtual int rereg_mr(MemoryRegion& region, uint32_t flags, ProtectionDomain* pd, void* addr, size_t length,
                       uint32_t access_flags) = 0;
  /// Bit 0: prefetch for reading, bit 1: for writing, as the verbs ABI's advice codes 0, 1, 2.
  virtual int advise_mr(ProtectionDomain& pd, uint32_t advice, uint32_t flags, const Sge* list, uint32_t count) = 0;
  virtual Result<std::unique_ptr<MemoryWindow>> alloc_mw(ProtectionDomain& pd, MwType type) = 0;
  virtual Result<std::unique_ptr<DeviceMemory>> alloc_dm(size_t length, uint32_t log_align) = 0;

  virtual Result<std::unique_ptr<CompletionChannel>> create_channel() = 0;
  virtual Result<std::unique_ptr<CompletionQueue>> create_cq(const CqOptions& options) = 0;
  virtual Result<std::unique_ptr<SharedReceiveQueue>> create_srq(ProtectionDomain& pd, const SrqOptions& options) = 0;
  virtual Result<std::unique_ptr<QueuePair>> create_qp(ProtectionDomain* pd, const QpOptions& options) = 0;
  /// Opens an XRC_RECV queue pair that another owner made in the same domain and the same process.
  virtual Result<std::unique_ptr<QueuePair>> open_qp(XrcDomain& xrcd, uint32_t qp_num, void* user_context) = 0;
  virtual Result<std::unique_ptr<AddressHandle>> create_ah(ProtectionDomain& pd, const AddressVector& vector) = 0;
  /// fd >= 0: the domain named by that file's inode; -1: a private one. `oflags` as open(2): O_CREAT, O_EXCL.
  virtual Result<std::unique_ptr<XrcDomain>> open_xrcd(int fd, int oflags) = 0;

  /// Pollable; readable while events wait.
  virtual int async_fd() const = 0;
  /// Takes one event; blocks unless async_fd() is non-blocking. EAGAIN, EINTR. `taken`, if given, is called with it
  /// before another thread's close() of the object that it names can return; it must not call the device.
  virtual Result<AsyncEvent> next_event(const std::function<void(const AsyncEvent&)>& taken = {}) = 0;
  /// 0, or EBUSY while objects of this open are alive.
  virtual int close() = 0;
};

/// Names of the devices this process can open: one, or those of NUPA_DEVICES; each with its node GUID (network byte
/// order). None: NUPA_DEVICES is wrong, as is logged.
struct DeviceName {
  std::string name;
  uint64_t node_guid;
};
NUPA_EXPORT std::vector<DeviceName> list_devices();

/// Opens a device by name. ENODEV: no such name, or NUPA_DEVICES names an interface that is not there; EINVAL: a
/// setting of the environment is wrong; EACCES, EPERM: the runtime directory is not this user's alone; ENFILE, ENOMEM,
/// EFBIG: a limit of the process; ENOSPC: no free process slot.
NUPA_EXPORT Result<std::unique_ptr<Device>> open_device(const std::string& name);

/// Descriptors of channels that are created from here on get numbers of at least `lowest`, as far as the limit of open
/// files allows: for programs that make tables by number. Any thread.
NUPA_EXPORT void set_lowest_descriptor(int lowest);

}  // namespace nupa
