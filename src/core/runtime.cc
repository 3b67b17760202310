#include "core/runtime.h"

#include <algorithm>
#include <cerrno>
#include <shared_mutex>

#include "base/memory_fault.h"
#include "core/connections.h"
#include "core/gid_table.h"

namespace nupa::core {

namespace {

std::mutex g_mutex;
std::weak_ptr<Runtime> g_runtime;
int g_owner_pid = 0;

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
  auto remapper =
      region::Remapper::create(used.share_memory() ? region::policy_from_environment() : region::Policy::kNever);
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
      runtime->remapper_->fd(), gids, *runtime, [&](uint32_t slot) { return used.reserve(slot); },
      [&](segment::SegmentHeader& header) { used.describe(header); });
  if (!node) return tl::unexpected(node.error().code == ENOSPC ? used.explain_no_slot(node.error()) : node.error());
  runtime->slot_ = (*node)->slot();
  runtime->tag_ = segment::owner_tag((*node)->slot(), (*node)->self().instance());
  runtime->node_ = std::move(*node);
  runtime->ring_memory_.emplace(*runtime->node_);
  runtime->service_ = std::make_unique<ObjectService>(*runtime->node_, runtime->objects_, runtime->pending_);
  runtime->memories_ = std::make_unique<host::PeerMemories>(*runtime->node_);
  runtime->remapper_->set_internal_threads(runtime->node_->internal_threads());
  if (auto opened = used.open(*runtime); !opened) return tl::unexpected(opened.error());
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
  const uint32_t kinds = tables().header->attention.exchange(0);
  // Requests below may write the program's memory, which then must not be moving.
  std::shared_lock copies(remapper_->copy_mutex());
  // Requests of other processes first: somebody waits for each.
  if ((kinds & segment::attention::kAgent) != 0) memories_->agent().serve();
  service_->on_attention(kinds);
}

void Runtime::on_mad(cm::Peer& peer, const cm::Mad& mad) {
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_mad(peer, mad);
}

void Runtime::on_peer_gone(cm::Peer& peer) {
  service_->on_peer_gone(peer);
  std::lock_guard lock(connections_mutex_);
  if (connections_ != nullptr) connections_->on_peer_gone(peer);
}

int64_t Runtime::on_tick(int64_t now_ns) {
  int64_t wanted;
  {
    std::shared_lock copies(remapper_->copy_mutex());  // as in on_attention()
    wanted = service_->on_tick(now_ns);
  }
  std::lock_guard lock(connections_mutex_);
  return connections_ == nullptr ? wanted : std::min(wanted, connections_->on_tick(now_ns));
}

}  // namespace nupa::core
