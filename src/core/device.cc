// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/reason.h"
#include "base/log.h"
#include "base/lowest_descriptor.h"
#include "base/system_error.h"
#include "core/cq.h"
#include "core/device_attr.h"
#include "core/device_table.h"
#include "core/objects.h"
#include "core/qp.h"
#include "core/srq.h"

namespace nupa::core {

namespace {

bool within(uint32_t value, int limit) { return value <= static_cast<uint32_t>(limit); }

/// A number that a program asks for.
struct Limited {
  const char* name;
  uint32_t value;
  uint32_t most;
};

}  // namespace

Pd::Pd(DeviceImpl& device, uint32_t number) : device_(device), number_(number) { device_.users.add(); }

Pd::~Pd() {
  if (open_ && close() != 0) NUPA_ERROR("protection domain %u deleted while in use", number_);
}

int Pd::close() {
  if (users.any()) return base::reject(EBUSY, "objects that were made with it still exist");
  open_ = false;
  device_.users.drop();
  return 0;
}

Ah::Ah(DeviceImpl& device, Pd& pd, const AddressVector& vector)
    : device_(device), pd_(pd), vector_(vector), handle_(device.process().next_handle()) {
  pd_.users.add();
  device_.users.add();
}

Ah::~Ah() {
  if (open_) close();
}

int Ah::close() {
  open_ = false;
  pd_.users.drop();
  device_.users.drop();
  return 0;
}

Xrcd::Xrcd(DeviceImpl& device, uint64_t identity) : device_(device), identity_(identity) { device_.users.add(); }

Xrcd::~Xrcd() {
  if (open_ && close() != 0) NUPA_ERROR("XRC domain deleted while in use");
}

int Xrcd::close() {
  if (users.any()) return base::reject(EBUSY, "objects that were made with it still exist");
  open_ = false;
  if (Process& process = device_.process(); process.is_here())
    process.xrc_users().drop(process.node().runtime_dir(), identity_);
  device_.users.drop();
  return 0;
}

Result<std::unique_ptr<EventQueue>> EventQueue::create() {
  auto queue = std::make_unique<EventQueue>();
  auto descriptor = progress::EventDescriptor::open(base::lowest_descriptor());
  if (!descriptor) return tl::unexpected(descriptor.error());
  queue->descriptor_ = std::move(*descriptor);
  return queue;
}

void EventQueue::push(const AsyncEvent& event) {
  // The mutex covers both steps, because forget() undoes both.
  std::lock_guard lock(mutex_);
  events_.push_back(event);
  descriptor_->count();
}

Result<AsyncEvent> EventQueue::take(const std::function<void(const AsyncEvent&)>& taken) {
  for (;;) {
    if (const int error = descriptor_->take(); error != 0) return fail(error, "no asynchronous event");
    std::lock_guard lock(mutex_);
    if (events_.empty()) continue;  // the event named an object that was closed
    const AsyncEvent event = events_.front();
    events_.pop_front();
    if (taken) taken(event);  // under the mutex, so that forget(), which close() calls, waits
    return event;
  }
}

void EventQueue::forget(const void* object) {
  std::lock_guard lock(mutex_);
  size_t forgotten = std::erase_if(events_, [object](const AsyncEvent& event) {
    return event.cq == object || event.qp == object || event.srq == object;
  });
  // A missing wake-up was read already: its reader waits for the mutex and then finds no event.
  while (forgotten > 0 && descriptor_->take_back()) --forgotten;
}

DeviceImpl::DeviceImpl(std::shared_ptr<Process> process, std::unique_ptr<EventQueue> events, const DeviceEntry& entry)
    : process_(std::move(process)), events_(std::move(events)), entry_(entry), name_(entry.name) {}

DeviceImpl::~DeviceImpl() {
  if (open_ && close() != 0) NUPA_ERROR("device deleted while its objects exist");
}

int DeviceImpl::close() {
  if (users.any()) return base::reject(EBUSY, "objects that were made with it still exist");
  open_ = false;
  return 0;
}

tl::unexpected<Error> DeviceImpl::fail_inherited() const {
  return fail(ENODEV, name_, ": the parent process opened the device; open it again in this process");
}

Result<AsyncEvent> DeviceImpl::next_event(const std::function<void(const AsyncEvent&)>& taken) {
  if (!is_here()) return fail_inherited();
  return events_->take(taken);
}

DeviceAttr DeviceImpl::query() const {
  DeviceAttr attr = device_attr();
  attr.node_guid = entry_.node_guid;
  attr.sys_image_guid = process_->devices().front().node_guid;  // the same for all devices of a host
  if (TransportMemory* const memory = own_memory(); memory != nullptr) attr.max_dm_size = memory->available();
  return attr;
}

Result<PortAttr> DeviceImpl::query_port(uint8_t port_num) const {
  if (port_num != 1) return fail(EINVAL, "the port number must be 1: the device has one port");
  PortAttr attr = port_attr();
  const auto mtu = process_->transports().mtu(entry_);
  if (!mtu) return tl::unexpected(mtu.error());
  attr.active_mtu = *mtu;
  return attr;
}

Result<GidEntry> DeviceImpl::query_gid(uint8_t port_num, uint32_t index) const {
  if (port_num != 1) return fail(EINVAL, "the port number must be 1: the device has one port");
  const std::vector<GidEntry>& table = entry_.gids;
  if (index >= static_cast<uint32_t>(port_attr().gid_tbl_len))
    return fail(EINVAL, "the GID index is beyond the GID table");
  if (index >= table.size()) return fail(ENODATA, "the GID table entry is empty");
  return table[index];
}

Result<uint16_t> DeviceImpl::query_pkey(uint8_t port_num, uint32_t index) const {
  if (port_num != 1 || index != 0) return fail(EINVAL, "the port number must be 1 and the P_Key index 0");
  return uint16_t{0xffff};  // the default partition, full member (IBTA 10.9.2)
}

MemoryDomain DeviceImpl::memory_domain() const {
  return process_->transports().share_memory() ? process_->node().domain() : MemoryDomain{};
}

uint64_t DeviceImpl::clock() const { return base::ticks(); }

uint64_t DeviceImpl::clock_khz() const { return core::clock_khz(); }

Result<std::unique_ptr<ProtectionDomain>> DeviceImpl::alloc_pd() {
  if (!is_here()) return fail_inherited();
  return std::make_unique<Pd>(*this, process_->next_handle());
}

Result<std::unique_ptr<CompletionQueue>> DeviceImpl::create_cq(const CqOptions& options) {
  if (!is_here()) return fail_inherited();
  const DeviceAttr limits = device_attr();
  if (options.entries == 0 || !within(options.entries, limits.max_cqe))
    return fail(EINVAL, name_, ": a completion queue has 1 to ", limits.max_cqe, " entries, not ", options.entries);
  const int64_t index = process_->objects().cqs().numbers().take();
  if (index < 0) return fail(ENOMEM, name_, ": all completion queues of this process are in use");
  // One slot more than requested stays unused, so that a full queue is detected before an entry is lost.
  const auto log2 = static_cast<uint32_t>(std::bit_width(options.entries));
  auto block = process_->ring_memory().allocate(shm::CompletionRing::bytes_for(log2));
  if (!block) {
    process_->objects().cqs().numbers().give_back(static_cast<uint32_t>(index));
    return tl::unexpected(block.error());
  }
  return std::make_unique<Cq>(*this, static_cast<uint32_t>(index), *block, log2, options);
}

Result<std::unique_ptr<SharedReceiveQueue>> DeviceImpl::create_srq(ProtectionDomain& pd, const SrqOptions& options) {
  if (!is_here()) return fail_inherited();
  const DeviceAttr limits = device_attr();
  if (options.max_wr == 0 || !within(options.max_wr, limits.max_srq_wr))
    return fail(EINVAL, name_, ": max_wr ", options.max_wr, " (from 1 to ", limits.max_srq_wr, ")");
  for (const auto& [name, value, most] :
       {Limited{"max_sge", options.max_sge, static_cast<uint32_t>(limits.max_srq_sge)},
        {"srq_limit", options.limit, options.max_wr}})
    if (value > most) return fail(EINVAL, name_, ": ", name, " ", value, " (at most ", most, ")");
  if (options.type == SrqType::kXrc && (options.xrcd == nullptr || options.cq == nullptr))
    return fail(EINVAL, "an XRC shared receive queue needs an XRC domain and a completion queue");
  const int64_t index = process_->objects().srqs().numbers().take();
  if (index < 0) return fail(ENOMEM, name_, ": all shared receive queues of this process are in use");
  auto srq = std::make_unique<Srq>(*this, static_cast<Pd&>(pd), static_cast<uint32_t>(index), options);
  const int error = srq->open();
  if (error != 0) return fail(error, name_, ": no memory for the receive ring");
  return srq;
}

Result<std::unique_ptr<QueuePair>> DeviceImpl::create_qp(ProtectionDomain* pd, const QpOptions& options) {
  if (!is_here()) return fail_inherited();
  const DeviceAttr limits = device_attr();
  const bool xrc_receive = options.type == QpType::kXrcRecv;
  const bool receives = options.type == QpType::kRc || options.type == QpType::kUc || options.type == QpType::kUd;
  if (!receives && !xrc_receive && options.type != QpType::kXrcSend)
    return fail(EOPNOTSUPP, "the queue pair type is not supported");
  if (xrc_receive ? options.xrcd == nullptr : pd == nullptr || options.send_cq == nullptr)
    return fail(EINVAL, "the queue pair needs a protection domain and send completion queue, or an XRC domain");
  if (receives && options.recv_cq == nullptr) return fail(EINVAL, "the queue pair needs a receive completion queue");
  if (options.srq != nullptr && !receives) return fail(EINVAL, "this queue pair type has no shared receive queue");
  const QpCap& cap = options.cap;
  const auto most_wr = static_cast<uint32_t>(limits.max_qp_wr), most_sge = static_cast<uint32_t>(limits.max_sge);
  for (const auto& [name, value, most] : {Limited{"max_send_wr", cap.max_send_wr, most_wr},
                                          {"max_recv_wr", cap.max_recv_wr, most_wr},
                                          {"max_send_sge", cap.max_send_sge, most_sge},
                                          {"max_recv_sge", cap.max_recv_sge, most_sge},
                                          {"max_inline_data", cap.max_inline_data, limits.max_inline_data}})
    if (value > most) return fail(EINVAL, name_, ": ", name, " ", value, " (at most ", most, ")");
  QpOptions adopted = options;
  // Like adapters and rdma_rxe, allow as much inline data as the send list has room for. Some programs that request
  // none rely on it.
  adopted.cap.max_inline_data =
      std::max<uint32_t>(cap.max_inline_data, cap.max_send_sge * static_cast<uint32_t>(sizeof(Sge)));
  if (!receives) adopted.recv_cq = nullptr;
  if (xrc_receive) {
    adopted.send_cq = nullptr;
    adopted.cap = {};
  }
  const auto index = process_->slots().take_qp();
  if (!index) return fail(index.error().code(), name_, ": ", index.error().what());
  auto qp = std::make_unique<Qp>(*this, xrc_receive ? nullptr : static_cast<Pd*>(pd), *index, adopted);
  const int error = qp->open();
  if (error != 0) return fail(error, name_, ": no memory for the receive ring");
  return qp;
}

Result<std::unique_ptr<QueuePair>> DeviceImpl::open_qp(XrcDomain& xrcd, uint32_t qp_num, void* user_context) {
  if (!is_here()) return fail_inherited();
  if (!process_->queue_pairs().has_slot(shm::slot_of(qp_num)))
    return fail(EOPNOTSUPP, "queue pair ", qp_num, " belongs to another process");
  Qp* qp = process_->objects().qps().find(qp_num);
  if (qp == nullptr || qp->type() != QpType::kXrcRecv || qp->xrcd_identity() != static_cast<Xrcd&>(xrcd).identity())
    return fail(EINVAL, "no XRC receive queue pair ", qp_num, " in this XRC domain");
  return std::make_unique<SharedQp>(*qp, user_context);
}

Result<std::unique_ptr<AddressHandle>> DeviceImpl::create_ah(ProtectionDomain& pd, const AddressVector& vector) {
  if (!is_here()) return fail_inherited();
  if (vector.port_num != 1) return fail(EINVAL, "the port number must be 1: the device has one port");
  // RoCE has no local identifiers. Every address is global (annex A17.4.1), except the one that means this host.
  if (!vector.is_global && vector.dlid != kHostLid)
    return fail(EINVAL, "the address vector must be global: RoCE has no LIDs");
  if (vector.is_global && !query_gid(1, vector.sgid_index))
    return fail(EINVAL, name_, ": no source GID at index ", vector.sgid_index);
  return std::make_unique<Ah>(*this, static_cast<Pd&>(pd), vector);
}

Result<std::unique_ptr<XrcDomain>> DeviceImpl::open_xrcd(int fd, int oflags) {
  if (!is_here()) return fail_inherited();
  if ((oflags & ~(O_CREAT | O_EXCL)) != 0) return fail(EINVAL, "XRC domains accept only O_CREAT and O_EXCL");
  uint64_t identity;
  if (fd < 0) {
    if ((oflags & O_CREAT) == 0) return fail(EINVAL, "an XRC domain without a file needs O_CREAT");
    identity = XrcUsers::kPrivate | uint64_t{process_->slot()} << 32 | process_->next_handle();
  } else {
    struct stat file;
    if (fstat(fd, &file) != 0) return base::fail_call(errno, "cannot stat the file of the XRC domain");
    // Device and inode, mixed: the same file names the same domain in every process of this host.
    identity = static_cast<uint64_t>(file.st_dev) * 0x9e3779b97f4a7c15ull ^ static_cast<uint64_t>(file.st_ino);
    identity &= XrcUsers::kPrivate - 1;
  }
  auto added = process_->xrc_users().add(process_->node().runtime_dir(), identity, (oflags & O_EXCL) != 0);
  if (!added) return tl::unexpected(added.error());
  return std::make_unique<Xrcd>(*this, identity);
}

}  // namespace nupa::core

namespace nupa {

void set_lowest_descriptor(int lowest) { base::set_lowest_descriptor(lowest); }

std::vector<DeviceName> list_devices() {
  std::vector<DeviceName> names;
  // A device can be opened if the process had it when it opened its first one.
  const auto process = core::Process::current();
  const auto devices = process != nullptr ? process->devices() : core::read_devices();
  if (!devices) {
    NUPA_WARN("no NUPA device: %s", devices.error().what());
    return names;
  }
  for (const core::DeviceEntry& device : *devices) names.push_back({device.name, device.node_guid, device.neighbours});
  return names;
}

Result<std::unique_ptr<Device>> open_device(const std::string& name) {
  auto process = core::Process::acquire();
  if (!process) {
    NUPA_WARN("cannot open %s: %s", name.c_str(), process.error().what());
    return tl::unexpected(process.error());
  }
  const auto& devices = (*process)->devices();
  const auto entry = std::find_if(devices.begin(), devices.end(),
                                  [&](const core::DeviceEntry& device) { return device.name == name; });
  if (entry == devices.end()) return fail(ENODEV, "no NUPA device has the name '", name, "' (nupa devices lists them)");
  auto events = core::EventQueue::create();
  if (!events) return tl::unexpected(events.error());
  return std::make_unique<core::DeviceImpl>(std::move(*process), std::move(*events), *entry);
}

}  // namespace nupa
