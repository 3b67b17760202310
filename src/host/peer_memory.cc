// SPDX-License-Identifier: Apache-2.0
#include "host/peer_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <vector>

#include "base/log.h"

namespace nupa::host {
namespace {

using base::Piece;
using shm::MrKind;
using shm::MrPiece;
using shm::MrShared;

struct Run {
  size_t first = 0;
  size_t count = 0;
  uint64_t bytes = 0;
};

/// True if these are valid parts of a region: pages, in order. Another process wrote the list.
bool are_pages(const std::vector<MrPiece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const MrPiece& piece = pieces[i];
    if (piece.begin >= piece.end || (piece.begin | piece.end | piece.file_offset) % shm::kPage != 0) return false;
    if (i > 0 && piece.begin < pieces[i - 1].end) return false;
  }
  return true;
}

/// The longest run of pieces without a gap, which one mapping can contain.
Run longest_run(const std::vector<MrPiece>& pieces) {
  Run best;
  for (size_t i = 0; i < pieces.size();) {
    Run run{i, 1, pieces[i].end - pieces[i].begin};
    while (i + run.count < pieces.size() && pieces[i + run.count].begin == pieces[i + run.count - 1].end) {
      run.bytes += pieces[i + run.count].end - pieces[i + run.count].begin;
      ++run.count;
    }
    if (run.bytes > best.bytes) best = run;
    i += run.count;
  }
  return best;
}

std::shared_ptr<MappedRegion> nothing() { return std::make_shared<MappedRegion>(nullptr, 0, 0); }

/// Null: a system call failed.
std::shared_ptr<MappedRegion> map_pieces(host::Peer& peer, const std::vector<MrPiece>& pieces) {
  const Run run = longest_run(pieces);
  if (run.count == 0) return nothing();
  void* base = mmap(nullptr, run.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto region = std::make_shared<MappedRegion>(static_cast<std::byte*>(base), pieces[run.first].begin,
                                               pieces[run.first].begin + run.bytes);
  std::byte* at = static_cast<std::byte*>(base);
  for (size_t i = run.first; i < run.first + run.count; ++i) {
    const uint64_t bytes = pieces[i].end - pieces[i].begin;
    if (const int error = peer.map_region(at, bytes, pieces[i].file_offset); error != 0) {
      NUPA_INFO("cannot map a memory region of slot %u: %s", peer.slot(), strerror(error));
      return nullptr;
    }
    at += bytes;
  }
  return region;
}

/// Copies bytes by process_vm_writev or process_vm_readv, which need no mapping. Earlier writes become visible before
/// those of this call.
WcStatus move_by_kernel(host::Peer& peer, bool write, uint64_t remote, std::byte* local, uint64_t length) {
  base::fence_before_writes();
  while (length > 0) {
    iovec mine{local, length};
    iovec theirs{reinterpret_cast<void*>(remote), length};
    const ssize_t moved = write ? process_vm_writev(peer.pid(), &mine, 1, &theirs, 1, 0)
                                : process_vm_readv(peer.pid(), &mine, 1, &theirs, 1, 0);
    if (moved <= 0) {
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == ESRCH) return WcStatus::kRetryExcErr;
      return WcStatus::kRemOpErr;
    }
    remote += static_cast<uint64_t>(moved);
    local += moved;
    length -= static_cast<uint64_t>(moved);
  }
  return WcStatus::kSuccess;
}

/// The same, and the last word of a write becomes visible last (base::copy_in_order).
WcStatus copy_by_kernel(host::Peer& peer, bool write, uint64_t remote, std::byte* local, uint64_t length) {
  uint64_t body = 0;
  if (write && !base::kStoresInOrder) body = length - base::last_word_bytes(remote, length);
  if (body > 0)
    if (const WcStatus status = move_by_kernel(peer, true, remote, local, body); status != WcStatus::kSuccess)
      return status;
  return move_by_kernel(peer, write, remote + body, local + body, length - body);
}

WcStatus copy_span(AgentCall& call, PeerMemory& memory, const RemoteRange& range, bool write, uint64_t remote,
                   std::byte* local, uint64_t length) {
  if (length == 0) return WcStatus::kSuccess;
  const MappedRegion* region = range.region;
  if (region == nullptr || (region->base() != nullptr && remote >= region->begin() && remote < region->end())) {
    const uint64_t here = region == nullptr ? length : std::min(length, region->end() - remote);
    std::byte* mapped =
        region == nullptr ? reinterpret_cast<std::byte*>(remote) : region->base() + (remote - region->begin());
    if (write)
      base::copy_in_order(mapped, local, here);
    else
      base::copy_block(local, mapped, here);
    return copy_span(call, memory, range, write, remote + here, local + here, length - here);
  }
  uint64_t outside = length;
  if (region->base() != nullptr && remote < region->begin()) outside = std::min(length, region->begin() - remote);
  host::Peer& peer = memory.peer();
  const WcStatus status = peer.cma_works() ? copy_by_kernel(peer, write, remote, local, outside)
                                           : call.copy(peer, write, remote, local, outside);
  if (status != WcStatus::kSuccess) return status;
  return copy_span(call, memory, range, write, remote + outside, local + outside, length - outside);
}

WcStatus copy_pieces(AgentCall& call, PeerMemory& memory, const RemoteRange& range, bool write, const Piece* pieces,
                     uint32_t count) {
  uint64_t remote = range.address;
  for (uint32_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    if (piece.length == 0) continue;
    if (piece.data == nullptr) {  // a null region: reads as zeros, discards writes
      if (write) {
        static const std::byte zeros[4096] = {};
        for (uint64_t done = 0; done < piece.length;) {
          const uint64_t step = std::min<uint64_t>(sizeof zeros, piece.length - done);
          const WcStatus status =
              copy_span(call, memory, range, true, remote + done, const_cast<std::byte*>(zeros), step);
          if (status != WcStatus::kSuccess) return status;
          done += step;
        }
      }
    } else {
      const WcStatus status = copy_span(call, memory, range, write, remote, piece.data, piece.length);
      if (status != WcStatus::kSuccess) return status;
    }
    remote += piece.length;
  }
  return WcStatus::kSuccess;
}

}  // namespace

MappedRegion::~MappedRegion() {
  if (base_ != nullptr && borrowed_ == nullptr) munmap(base_, end_ - begin_);
}

std::shared_ptr<PeerMemory> PeerMemories::of(host::Peer& peer) {
  std::lock_guard lock(mutex_);
  if (const auto known = memories_.find(&peer); known != memories_.end())
    if (auto memory = known->second.lock()) return memory;
  // A server has any number of peers over time, so entries that no endpoint uses any more are removed.
  std::erase_if(memories_, [](const auto& entry) { return entry.second.expired(); });
  auto memory = std::make_shared<PeerMemory>(peer, agent_, borrow_);
  memories_[&peer] = memory;
  return memory;
}

std::shared_ptr<MappedRegion> PeerMemory::map(uint32_t index, uint32_t generation) {
  std::lock_guard lock(mutex_);
  if (const auto found = places_.find(index); found != places_.end()) {
    const auto entry = found->second;
    kept_.splice(kept_.begin(), kept_, entry);
    if (entry->generation == generation) return entry->region;
    places_.erase(found);
    kept_.pop_front();
  }
  if (kept_.size() == kMostKept) {
    places_.erase(kept_.back().index);
    kept_.pop_back();
  }
  auto region = read_and_map(index);
  if (region == nullptr) {
    // There may be too many mappings, so unmap those that no endpoint holds. Without a mapping the kernel copies.
    places_.clear();
    kept_.clear();
    region = read_and_map(index);
    if (region == nullptr) region = nothing();
  }
  kept_.push_front({index, generation, region});
  places_[index] = kept_.begin();
  return region;
}

std::shared_ptr<MappedRegion> PeerMemory::read_and_map(uint32_t index) {
  const MrShared& mr = peer_->tables().mr[index];
  const uint32_t count = __atomic_load_n(&mr.piece_count, __ATOMIC_RELAXED);
  std::vector<MrPiece> pieces;
  if (count <= shm::kInlinePieces) {
    pieces.assign(mr.inline_pieces, mr.inline_pieces + count);
  } else {
    auto list = peer_->heap(mr.pieces, count * sizeof(MrPiece));
    if (list) {
      const auto* first = static_cast<const MrPiece*>(*list);
      pieces.assign(first, first + count);
    }
  }
  if (!are_pages(pieces)) return nothing();
  const uint64_t lent_to = __atomic_load_n(&mr.lent_to, __ATOMIC_RELAXED);
  if (lent_to == 0) return map_pieces(*peer_, pieces);
  if (!borrow_ || pieces.size() != 1) return nothing();
  const MrPiece& piece = pieces.front();
  auto borrowed = borrow_(lent_to, piece.file_offset, piece.end - piece.begin);
  if (borrowed == nullptr) return nothing();
  return std::make_shared<MappedRegion>(std::move(borrowed), piece.begin, piece.end);
}

std::unique_ptr<const KeyCache::Entry> KeyCache::load(uint32_t key) const {
  const uint32_t index = shm::key_index(key);
  if (index >= shm::kMaxMr) return nullptr;
  host::Peer& peer = memory_->peer();
  const MrShared& mr = peer.tables().mr[index];
  if (key == 0 || mr.key.load(std::memory_order_acquire) != key) return nullptr;
  auto loaded = std::make_unique<Entry>();
  Entry& entry = *loaded;
  entry.key = key;
  entry.generation = mr.generation;
  entry.pd = mr.pd;
  entry.access = mr.access;
  entry.start = mr.start;
  entry.length = mr.length;
  entry.delta = mr.delta;
  entry.shared = &mr;
  uint32_t memory_index = index;
  uint32_t memory_generation = mr.generation;
  if (mr.kind == static_cast<uint32_t>(MrKind::kWindow)) {
    const uint32_t parent_index = mr.parent;
    if (parent_index >= shm::kMaxMr) return nullptr;
    const MrShared& parent = peer.tables().mr[parent_index];
    entry.qp_num = mr.qp_num;
    entry.parent = &parent;
    entry.parent_key = parent.key.load(std::memory_order_acquire);
    memory_index = parent_index;
    memory_generation = parent.generation;
    if (entry.parent_key == 0) return nullptr;
  }
  entry.null_region = mr.kind == static_cast<uint32_t>(MrKind::kNull);
  if (peer.is_self() && !entry.null_region) {
    entry.direct_begin = entry.start + entry.delta;
    entry.direct_length = entry.length;
    entry.direct_base = reinterpret_cast<std::byte*>(entry.direct_begin);
  } else if (!entry.null_region) {
    entry.region = memory_->map(memory_index, memory_generation);
    if (entry.region->base() != nullptr) {
      entry.direct_begin = entry.region->begin();
      entry.direct_length = entry.region->end() - entry.region->begin();
      entry.direct_base = entry.region->base();
    }
  }
  // The entry may have changed while it was read. Then it is not the requested one.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (mr.key.load(std::memory_order_relaxed) != key || mr.generation != entry.generation) return nullptr;
  return loaded;
}

KeyCache::Reach KeyCache::reach_of(const Entry& entry) {
  Reach reach;
  // A window depends on its region and its queue pair, and a null region has no memory, so these use the Entry each
  // time.
  if (entry.parent != nullptr || entry.null_region || entry.direct_base == nullptr) return reach;
  const uint64_t begin = std::max(entry.start + entry.delta, entry.direct_begin);
  const uint64_t end = std::min(entry.start + entry.delta + entry.length, entry.direct_begin + entry.direct_length);
  if (begin >= end) return reach;
  reach.key = entry.key;
  reach.generation = entry.generation;
  reach.pd = entry.pd;
  reach.access = entry.access;
  reach.shared = entry.shared;
  reach.first = begin - entry.delta;
  reach.length = end - begin;
  reach.delta = entry.delta;
  reach.base = entry.direct_base + (begin - entry.direct_begin);
  reach.region = entry.region.get();
  return reach;
}

const KeyCache::Entry* KeyCache::find(uint32_t key) try {
  const uint32_t place = shm::key_index(key) % kEntries;
  if (entries_[place] == nullptr || !entries_[place]->holds(key)) {
    reaches_[place] = {};
    entries_[place] = load(key);
    if (entries_[place] == nullptr) return nullptr;
    reaches_[place] = reach_of(*entries_[place]);
  }
  return entries_[place].get();
} catch (const std::bad_alloc&) {
  NUPA_WARN("no memory to look up remote key 0x%x: the request is rejected", key);
  return nullptr;
}

std::optional<uint64_t> KeyCache::first_address(uint32_t key) {
  const Entry* const entry = find(key);
  if (entry == nullptr) return std::nullopt;
  return entry->start;
}

bool KeyCache::resolve_slowly(uint32_t key, uint64_t address, uint64_t length, uint32_t rights, uint32_t pd,
                              uint32_t remote_qpn, RemoteRange* range) {
  const Entry* const found = find(key);
  if (found == nullptr) return false;
  const Entry& entry = *found;
  const uint64_t offset = address - entry.start;
  if ((entry.access & rights) != rights || entry.pd != pd || offset > entry.length || length > entry.length - offset ||
      (entry.qp_num != 0 && entry.qp_num != remote_qpn))
    return false;
  range->address = address + entry.delta;
  const uint64_t within = range->address - entry.direct_begin;
  const bool direct = within <= entry.direct_length && length <= entry.direct_length - within;
  range->direct = direct ? entry.direct_base + within : nullptr;
  range->region = entry.region.get();
  range->null_region = entry.null_region;
  return true;
}

WcStatus write_remote_slowly(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const Piece* pieces,
                             uint32_t count) {
  if (range.null_region) return WcStatus::kSuccess;
  return call.attempt([&] { return copy_pieces(call, memory, range, true, pieces, count); });
}

WcStatus read_remote_slowly(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const Piece* pieces,
                            uint32_t count) {
  if (range.null_region) {
    for (uint32_t i = 0; i < count; ++i)
      if (pieces[i].data != nullptr) std::memset(pieces[i].data, 0, pieces[i].length);
    return WcStatus::kSuccess;
  }
  const WcStatus status = call.attempt([&] { return copy_pieces(call, memory, range, false, pieces, count); });
  base::fence_after_reads();
  return status;
}

}  // namespace nupa::host
