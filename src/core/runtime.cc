#include "core/runtime.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory_fault.h"
#include "core/connections.h"
#include "core/cq.h"
#include "core/device_attr.h"
#include "core/gid_table.h"
#include "core/qp.h"
#include "core/srq.h"
#include "progress/waiter.h"

namespace nupa::core {

namespace {

std::mutex g_mutex;
std::weak_ptr<Runtime> g_runtime;
int g_owner_pid = 0;

constexpr int64_t kBusyPauseNs = 100'000;
}  // namespace

Runtime::Runtime()
    : pending_(objects_.mutex(), [this] {
        if (!node_->on_service_thread()) node_->kick();
      }) {}

Runtime::~Runtime() {
  std::unique_ptr<Connections> last;
  {
    std::lock_guard lock(connections_mutex_);
    last = std::move(connections_);
  }
  // Without the lock: threads that tell it something may be in its way.
  last.reset();
}

Result<std::shared_ptr<Runtime>> Runtime::acquire() {
  std::lock_guard lock(g_mutex);
  const int pid = getpid();
  auto existing = g_owner_pid == pid ? g_runtime.lock() : nullptr;
  if (existing) return existing;
  auto transports = Transports::from_environment();
  if (!transports) return tl::unexpected(transports.error());
  auto devices = read_devices();
  if (!devices) return tl::unexpected(devices.error());
  std::shared_ptr<Runtime> runtime(new Runtime);
  runtime->transports_ = std::move(*transports);
  Transports& used = runtime->transports_;
  // Where nobody maps it, memory is copied from and to where it lies.
  const bool shares = used.share_memory();
  auto remapper = region::Remapper::create(shares ? region::policy_from_environment() : region::Policy::kNever);
  if (!remapper) return tl::unexpected(remapper.error());
  runtime->remapper_ = std::move(*remapper);
  runtime->devices_ = std::move(*devices);
  runtime->own_addresses_ = own_addresses();
  std::vector<std::vector<Gid>> gids;
  for (const DeviceEntry& device : runtime->devices_) {
    gids.emplace_back();
    for (const GidEntry& entry : device.gids) gids.back().push_back(entry.gid);
  }
  // Packets come to memory that the program may have unmapped, and are made of it; peers ask for atomics on it.
  if (const int error = base::watch_memory_faults(); error != 0) return fail(error, "no handler of memory faults");
  auto node = cm::Node::open(
      runtime->remapper_->fd(), gids, *runtime, [&](uint32_t slot) { return used.reserve(slot); }, shares);
  if (!node) return tl::unexpected(node.error().code == ENOSPC ? used.explain_no_slot(node.error()) : node.error());
  runtime->slot_ = (*node)->slot();
  runtime->tag_ = segment::owner_tag((*node)->slot(), (*node)->self().instance());
  runtime->node_ = std::move(*node);
  runtime->ring_memory_.emplace(*runtime->node_);
  runtime->memories_ = std::make_unique<host::PeerMemories>(*runtime->node_);
  runtime->remapper_->set_internal_threads(runtime->node_->internal_threads());
  if (auto opened = used.open(*runtime); !opened) return tl::unexpected(opened.error());
  runtime->pollers_ = used.pollers();
  runtime->connections_ = std::make_unique<Connections>(*runtime);
  // What comes for the host is for all its processes: a process that wants no connections passes it on.
  if (const MadCarrier* mads = used.mads(); mads != nullptr && mads->receives_for_host())
    if (auto heard = runtime->connections_->hear(); !heard) return tl::unexpected(heard.error());
  // The service thread calls the runtime from now on: everything that it may need is there.
  if (auto served = runtime->node_->serve(); !served) return tl::unexpected(served.error());
  g_runtime = runtime;
  g_owner_pid = pid;
  return runtime;
}

bool Runtime::host_is_covered(const Transport& asking) const { return transports_.share_memory_beside(asking); }

bool Runtime::has_queue_pair(uint32_t number) const {
  return segment::slot_of(number) == slot_ && objects_.qps().at(segment::index_of(number)) != nullptr;
}

void Runtime::count_thread(bool writes_memory) {
  // One that does not write to memory unasked is no company of the program's threads.
  remapper_->set_internal_threads(node_->internal_threads() + (writes_memory ? 0 : 1));
}

void Runtime::on_attention() {
  segment::SegmentHeader& header = *tables().header;
  const uint32_t kinds = header.attention.exchange(0);
  // Requests below may write the program's memory, which then must not be moving.
  std::shared_lock copies(remapper_->copy_mutex());
  // Requests of other processes first: somebody waits for each.
  if ((kinds & segment::attention::kAgent) != 0) memories_->agent().serve();
  std::lock_guard lock(objects_.mutex());
  const auto each = [](auto& words, auto&& visit) {
    for (uint32_t word = 0; word < std::size(words); ++word) {
      if (words[word].load() == 0) continue;  // most are
      for (uint64_t bits = words[word].exchange(0); bits != 0; bits &= bits - 1)
        visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
    }
  };
  if ((kinds & segment::attention::kQp) != 0) {
    each(header.qp_attention, [&](uint32_t index) {
      Qp* qp = objects_.qps().at(index);
      if (qp == nullptr) return;
      if (tables().qp[index].wake.exchange(0) != 0) qp->progress(base::now_ns());
      qp->tell_established();
      if (!qp->handle_error()) failed_.insert(index);
    });
  }
  if ((kinds & segment::attention::kSrq) != 0) {
    each(header.srq_attention, [&](uint32_t index) {
      if (Srq* srq = objects_.srqs().at(index); srq != nullptr) srq->on_limit();
    });
  }
  if ((kinds & segment::attention::kCq) != 0) {
    each(header.cq_attention, [&](uint32_t index) {
      Cq* cq = objects_.cqs().at(index);
      if (cq == nullptr) return;
      if (tables().cq[index].overrun.load() == 1) {
        tables().cq[index].overrun.store(2);  // told once
        cq->on_overrun();
      }
      cq->wake_channel();
    });
  }
}

void Runtime::recover_from(cm::Peer& peer) {
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < objects_.srqs().high_water(); ++i)
    if (Srq* srq = objects_.srqs().at(i); srq != nullptr) srq->recover(dead);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i)
    if (Qp* qp = objects_.qps().at(i); qp != nullptr) qp->recover(dead);
}

void Runtime::on_mad(cm::Peer& peer, const cm::Mad& mad) {
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_mad(peer, mad);
}

void Runtime::on_peer_gone(cm::Peer& peer) {
  bury(peer);
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_peer_gone(peer);
}

void Runtime::bury(cm::Peer& peer) {
  std::lock_guard lock(objects_.mutex());
  recover_from(peer);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i) {
    Qp* qp = objects_.qps().at(i);
    if (qp == nullptr) continue;
    // A thread that is inside a post to the dead peer comes out of it: nobody can hold it up any more.
    progress::Waiter waiter(progress::kLockPolicy);
    for (int turn = 0; turn < 100000 && !qp->handle_peer_gone(peer); ++turn) waiter.turn();
    if (tables().qp[i].error.load() != 0 || segment::state_of(tables().qp[i].state.load()) == QpState::kErr)
      failed_.insert(i);
  }
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < objects_.cqs().high_water(); ++i)
    if (Cq* cq = objects_.cqs().at(i); cq != nullptr) cq->recover(dead);
  if (!failed_.empty()) node_->kick();
}

int64_t Runtime::on_tick(int64_t now_ns) {
  const int64_t wanted = serve_queue_pairs(now_ns);
  std::lock_guard lock(connections_mutex_);
  return connections_ == nullptr ? wanted : std::min(wanted, connections_->on_tick(now_ns));
}

int64_t Runtime::serve_queue_pairs(int64_t now_ns) {
  // Before the objects' mutex, as in on_attention().
  std::shared_lock copies(remapper_->copy_mutex());
  std::lock_guard lock(objects_.mutex());
  int64_t wanted = INT64_MAX;
  for (auto failed = failed_.begin(); failed != failed_.end();) {
    Qp* qp = objects_.qps().at(*failed);
    if (qp == nullptr || qp->handle_error()) {
      failed = failed_.erase(failed);
    } else {
      wanted = now_ns + kBusyPauseNs;
      ++failed;
    }
  }
  return std::min(wanted, pending_.progress(now_ns));
}

}  // namespace nupa::core
