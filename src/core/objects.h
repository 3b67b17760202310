// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The small objects of the core and what they share.
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include <nupa/device.h>
#include "base/unique_fd.h"
#include "progress/event_descriptor.h"
#include "core/process.h"

namespace nupa::core {

class DeviceImpl;
class Dm;

/// Counts the users of an object. An object with users cannot be closed (EBUSY).
class Users {
 public:
  void add() { count_.fetch_add(1); }
  void drop() { count_.fetch_sub(1); }
  bool any() const { return count_.load() != 0; }

 private:
  std::atomic<int> count_{0};
};

class Pd final : public ProtectionDomain {
 public:
  Pd(DeviceImpl& device, uint32_t number);
  ~Pd() override;
  uint32_t handle() const override { return number_; }
  int close() override;

  DeviceImpl& device() { return device_; }
  Users users;

 private:
  DeviceImpl& device_;
  uint32_t number_;
  bool open_ = true;
};

class Ah final : public AddressHandle {
 public:
  Ah(DeviceImpl& device, Pd& pd, const AddressVector& vector);
  ~Ah() override;
  const AddressVector& vector() const override { return vector_; }
  uint32_t handle() const override { return handle_; }
  int close() override;
  Pd& pd() const { return pd_; }

 private:
  DeviceImpl& device_;
  Pd& pd_;
  AddressVector vector_;
  uint32_t handle_;
  bool open_ = true;
};

class Xrcd final : public XrcDomain {
 public:
  /// `identity` was added to the process's XrcUsers.
  Xrcd(DeviceImpl& device, uint64_t identity);
  ~Xrcd() override;
  int close() override;
  uint64_t identity() const { return identity_; }
  Users users;

 private:
  DeviceImpl& device_;
  uint64_t identity_;
  bool open_ = true;
};

/// The asynchronous events of one open, behind a descriptor that can be polled.
class EventQueue {
 public:
  /// EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<EventQueue>> create();
  int fd() const { return descriptor_->fd(); }
  void push(const AsyncEvent& event);
  Result<AsyncEvent> take(const std::function<void(const AsyncEvent&)>& taken);
  /// Drops the events that name an object which is being closed.
  void forget(const void* object);

 private:
  std::unique_ptr<progress::EventDescriptor> descriptor_;
  std::mutex mutex_;
  std::deque<AsyncEvent> events_;
};

/// One open of a device.
class DeviceImpl final : public Device {
 public:
  /// `entry`: an entry of the process's devices().
  DeviceImpl(std::shared_ptr<Process> process, std::unique_ptr<EventQueue> events, const DeviceEntry& entry);
  ~DeviceImpl() override;

  const std::string& name() const override { return name_; }
  DeviceAttr query() const override;
  Result<PortAttr> query_port(uint8_t port_num) const override;
  Result<GidEntry> query_gid(uint8_t port_num, uint32_t index) const override;
  Result<uint16_t> query_pkey(uint8_t port_num, uint32_t index) const override;
  MemoryDomain memory_domain() const override;
  uint64_t clock() const override;
  uint64_t clock_khz() const override;

  Result<std::unique_ptr<ProtectionDomain>> alloc_pd() override;
  Result<std::unique_ptr<MemoryRegion>> reg_mr(ProtectionDomain& pd, void* addr, size_t length, uint64_t iova,
                                               uint32_t access_flags) override;
  Result<std::unique_ptr<MemoryRegion>> reg_dmabuf_mr(ProtectionDomain& pd, uint64_t offset, size_t length,
                                                      uint64_t iova, int fd, uint32_t access_flags) override;
  Result<std::unique_ptr<MemoryRegion>> alloc_null_mr(ProtectionDomain& pd) override;
  Result<std::unique_ptr<MemoryRegion>> alloc_mr(ProtectionDomain& pd, size_t length, uint32_t access_flags,
                                                 MemorySource source) override;
  Result<std::unique_ptr<MemoryRegion>> reg_dm_mr(ProtectionDomain& pd, DeviceMemory& dm, uint64_t offset,
                                                  size_t length, uint32_t access_flags) override;
  int rereg_mr(MemoryRegion& region, uint32_t mask, ProtectionDomain* pd, void* addr, size_t length,
               uint32_t access_flags) override;
  int advise_mr(ProtectionDomain& pd, MrAdvice advice, uint32_t flags, const Sge* list, uint32_t count) override;
  Result<std::unique_ptr<MemoryWindow>> alloc_mw(ProtectionDomain& pd, MwType type) override;
  Result<std::unique_ptr<DeviceMemory>> alloc_dm(size_t length, uint32_t log_align) override;
  Result<std::unique_ptr<CompletionChannel>> create_channel() override;
  Result<std::unique_ptr<CompletionQueue>> create_cq(const CqOptions& options) override;
  Result<std::unique_ptr<SharedReceiveQueue>> create_srq(ProtectionDomain& pd, const SrqOptions& options) override;
  Result<std::unique_ptr<QueuePair>> create_qp(ProtectionDomain* pd, const QpOptions& options) override;
  Result<std::unique_ptr<QueuePair>> open_qp(XrcDomain& xrcd, uint32_t qp_num, void* user_context) override;
  Result<std::unique_ptr<AddressHandle>> create_ah(ProtectionDomain& pd, const AddressVector& vector) override;
  Result<std::unique_ptr<XrcDomain>> open_xrcd(int fd, int oflags) override;
  int async_fd() const override { return events_->fd(); }
  Result<AsyncEvent> next_event(const std::function<void(const AsyncEvent&)>& taken) override;
  int close() override;

  Process& process() { return *process_; }
  /// False in a forked child: the objects of this open belong to the parent.
  bool is_here() const { return process_->is_here(); }
  const DeviceEntry& entry() const { return entry_; }
  /// The memory of the device's own transport. Null: it has none, or this is a forked child.
  TransportMemory* own_memory() const { return is_here() ? process_->transports().memory(entry_) : nullptr; }
  EventQueue& events() { return *events_; }
  Users users;

 private:
  /// Memory of the remapper's file.
  Result<std::unique_ptr<Dm>> allocate_mappable(size_t length);
  Result<std::unique_ptr<Dm>> lend(TransportMemory& lender, size_t length);
  /// The error of calls while is_here() is false.
  [[gnu::cold]] tl::unexpected<Error> fail_inherited() const;

  std::shared_ptr<Process> process_;
  std::unique_ptr<EventQueue> events_;
  const DeviceEntry& entry_;
  const std::string name_;
  bool open_ = true;
};

}  // namespace nupa::core
