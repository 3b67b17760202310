// SPDX-License-Identifier: Apache-2.0
#include "core/process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <shared_mutex>

#include "base/clock.h"
#include "base/memory_fault.h"
#include "base/own_addresses.h"
#include "base/system_error.h"
#include "base/settings.h"
#include "capture/tap.h"
#include "core/gid_table.h"
#include "progress/waiter.h"
#include "shm/layout.h"

namespace nupa::core {

namespace {

/// The lock may be held for long: opening waits for other processes, up to 20 s behind the lock of the runtime
/// directory.
struct Current {
  std::mutex mutex;
  std::weak_ptr<Process> process;
};
progress::RenewedInChildren<Current>& g_current = *new progress::RenewedInChildren<Current>;

}  // namespace

Process::Process() : pending_(objects_.mutex(), [this](int64_t at_ns) { object_events_->wake_at(at_ns); }) {}

Process::~Process() {
  progress::leave_forks(this);
  // Members are destroyed after the service thread has ended its calls.
  if (node_ != nullptr) node_->stop();
  if (node_ != nullptr) capture::detach();
}

std::shared_ptr<Process> Process::current() {
  Current& current = g_current.get();
  std::lock_guard lock(current.mutex);
  return current.process.lock();
}

Result<std::shared_ptr<Process>> Process::acquire() {
  Current& current = g_current.get();
  std::lock_guard lock(current.mutex);
  if (auto existing = current.process.lock()) return existing;
  if (const auto level = base::word_setting("NUPA_LOG"); !level) return tl::unexpected(level.error());
  const auto policy = memory::policy_from_environment();
  if (!policy) return tl::unexpected(policy.error());
  if (const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); page != shm::kPage)
    return fail(ENOTSUP, "no NUPA device: this kernel has pages of ", page, " bytes, and NUPA needs ", shm::kPage);
  auto transports = Transports::from_environment();
  if (!transports) return tl::unexpected(transports.error());
  auto devices = read_devices();
  if (!devices) return tl::unexpected(devices.error());
  const std::shared_ptr<Process> process = progress::shared_in_process(new Process);
  process->transports_ = std::move(*transports);
  Transports& used = process->transports_;
  // If no transport maps memory, it is copied where it lies.
  auto remapper = memory::Remapper::create(used.share_memory() ? *policy : memory::Policy::kNever);
  if (!remapper) return tl::unexpected(remapper.error());
  process->remapper_ = std::move(*remapper);
  process->devices_ = std::move(*devices);
  for (const base::OwnAddress& own : base::own_addresses()) process->own_addresses_.push_back(own.gid);
  std::vector<std::vector<Gid>> gids;
  for (const DeviceEntry& device : process->devices_) {
    gids.emplace_back();
    for (const GidEntry& entry : device.gids) gids.back().push_back(entry.gid);
  }
  // Transports copy to and from memory that the program may have unmapped; peers request atomics on it.
  if (const int error = base::watch_memory_faults(); error != 0)
    return base::fail_call(error, "cannot install the handler of memory faults");
  auto node = host::Node::open(
      process->remapper_->fd(), gids, *process, [&](uint32_t slot) { return used.reserve(slot); },
      [&](shm::SegmentHeader& header) { used.describe(header); });
  if (!node) return tl::unexpected(node.error().code() == ENOSPC ? used.explain_no_slot(node.error()) : node.error());
  process->slot_ = (*node)->slot();
  process->tag_ = shm::owner_tag((*node)->slot(), (*node)->self().instance());
  process->node_ = std::move(*node);
  process->objects_.qps().prepare(process->slot_);
  process->objects_.qps().add_slot(process->slot_);
  process->slots_.emplace(*process->node_, used, process->objects_.qps());
  process->ring_memory_.emplace(*process->node_, process->objects_.qps());
  process->object_events_ =
      make_object_events(*process->node_, process->objects_, process->pending_, process->remapper_->copy_mutex());
  process->memories_ =
      std::make_unique<host::PeerMemories>(*process->node_, [&used](uint64_t lent_to, uint64_t offset, uint64_t bytes) {
        return used.borrow({lent_to, offset}, bytes);
      });
  process->remapper_->set_internal_threads(process->node_->internal_threads());
  if (auto opened = used.open(*process); !opened) return tl::unexpected(opened.error());
  for (const ServiceEntry* entry : service_entries()) {
    process->services_.push_back({entry, entry->make(*process)});
    if (auto started = process->services_.back().service->start(); !started) return tl::unexpected(started.error());
  }
  if (const int error = progress::join_forks(progress::ForkStage::kDescriptors, process.get()); error != 0)
    return fail(error, "no memory for fork handlers");
  // The service thread calls this object from now on: everything that it may need exists.
  if (auto served = process->node_->serve(); !served) return tl::unexpected(served.error());
  process->await_capture();
  current.process = process;
  return process;
}

void Process::on_exit() {
  // A node that cannot be opened ends before this process has it.
  if (node_ != nullptr && is_here()) port_totals_.publish(queue_pairs(), true);
}

void Process::await_capture() {
  constexpr int64_t kLimitNs = 200'000'000;
  constexpr int64_t kPauseNs = 500'000;
  if (!node_->runtime_dir().is_held(host::RuntimeDir::kCaptureOfAllKey)) return;
  const int64_t deadline = base::now_ns() + kLimitNs;
  while (!capture::is_on() && base::now_ns() < deadline) progress::sleep_for(kPauseNs);
}

Result<void> Process::on_capture(base::UniqueFd file) {
  std::vector<capture::DeviceName> names;
  for (const DeviceEntry& device : devices_) {
    names.push_back({device.name, {}});
    for (const GidEntry& entry : device.gids) names.back().gids.push_back(entry.gid);
  }
  return capture::attach(std::move(file), tables().header->command, names);
}

void Process::on_capture_end() { capture::detach(); }

bool Process::in_child() {
  object_events_->in_child();
  transports_.abandon_pollers();
  return false;
}

bool Process::host_is_covered(const Transport& asking) const { return transports_.share_memory_beside(asking); }

bool Process::has_queue_pair(uint32_t number) const { return objects_.qps().find(number) != nullptr; }

void Process::count_thread(bool writes_memory) {
  // A thread that writes no program memory on its own does not count as one of the program's threads.
  quiet_threads_ = writes_memory ? 0 : 1;
  report_threads();
}

void Process::count_copying_threads(int threads) {
  copying_threads_ = threads;
  report_threads();
}

void Process::report_threads() {
  remapper_->set_internal_threads(node_->internal_threads() + quiet_threads_ + copying_threads_);
}

void Process::on_attention() {
  const uint32_t kinds = tables().header->attention.exchange(0);
  // The requests below may write the program's memory, which must not be moved meanwhile.
  std::shared_lock copies(remapper_->copy_mutex());
  // Requests of other processes come first: a thread waits for each of them.
  if ((kinds & shm::attention::kAgent) != 0) memories_->agent().serve();
  object_events_->on_attention(kinds);
}

ProcessService* Process::find_service(const ServiceEntry& entry) {
  for (const Service& each : services_)
    if (each.entry == &entry) return each.service.get();
  return nullptr;
}

void Process::on_payload(host::Peer& peer, const host::Payload& payload) {
  for (const Service& each : services_) each.service->on_payload(peer, payload);
}

void Process::on_peer_exit(host::Peer& peer) {
  object_events_->on_peer_exit(peer);
  for (const Service& each : services_) each.service->on_peer_exit(peer);
}

}  // namespace nupa::core
