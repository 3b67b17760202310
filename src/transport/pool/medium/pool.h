// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The pool as one process of one host sees it: who else is there, rings to them, and blocks of memory. The engine of
/// the transport uses this interface alone. So it does not know the kind of the medium, and its tests bring
/// another pool.

#include <nupa/device.h>
#include <nupa/result.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/pool/medium/line_ring.h"

namespace nupa::pool {

/// One life of one process of the pool. A later process in the same record has another instance.
struct ProcessId {
  uint16_t host = 0;      ///< number of the host
  uint16_t record = 0;    ///< index in the host's table of processes
  uint64_t instance = 0;  ///< random, never 0
  bool operator==(const ProcessId&) const = default;
};

/// The description that a process publishes about itself. It is bounded by kMax* of layout.h.
struct Description {
  std::vector<uint32_t> slots;     ///< of its queue pair numbers (shm::slot_of)
  std::vector<Gid> gids;           ///< the addresses of its devices; the pool's own GID of the host among them
  std::vector<Gid> groups;         ///< multicast groups that a queue pair of it has joined
  bool receives_for_host = false;  ///< it takes the management datagrams for the host as a whole
};

/// The state of a process as its record shows it.
enum class Life : uint8_t {
  kAlive,
  kSilent,  ///< its heartbeat has not changed for two seconds; it may come back, and it may still write
  kEnded,   ///< it does not write any more: it has left, its host was started again, or its record has another process
};

/// Both rings between this process and another one. The two directions may be used by two threads at the same time;
/// each direction by one at a time.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual const ProcessId& peer() const = 0;
  /// The peer has answered the offer: the channel can be written.
  virtual bool is_open() const = 0;
  /// True if the peer has closed the open channel: it takes nothing from it any more. Records that it wrote before are
  /// still there.
  virtual bool is_closed() const = 0;
  /// Lines of each ring. Constant.
  virtual uint32_t lines() const = 0;

  // Writing. See RingWriter.
  virtual bool fits(uint16_t payload_lines) = 0;
  virtual void store(uint64_t offset, const std::byte* from, uint64_t bytes) = 0;
  virtual void publish(const Header& header) = 0;
  /// Publishes a record without payload lines. Returns false, and does nothing, if it does not fit or the channel is
  /// not open.
  virtual bool put(const Header& header) {
    if (!is_open() || !fits(0)) return false;
    publish(header);
    return true;
  }
  /// Copies bytes to memory of the peer (Pool::reach). They are there before the next publish(), and before bytes that
  /// are placed later. In the ring's direction of writing.
  virtual void place([[maybe_unused]] std::byte* to, [[maybe_unused]] const std::byte* from,
                     [[maybe_unused]] uint64_t bytes) {}

  // Reading. See RingReader.
  enum class Look : uint8_t { kNothing, kRecord, kGarbage };
  virtual Look look(Header* header) = 0;
  virtual void load(uint64_t offset, std::byte* to, uint64_t bytes) = 0;
  virtual std::array<std::span<const std::byte>, 2> payload(uint64_t bytes) const = 0;
  virtual void pop() = 0;
  virtual void report() = 0;

  /// Rings the peer's bell: a process that does not look at each channel all the time looks at this one soon. With a
  /// doorbell, it wakes a process that sleeps. Any thread.
  virtual void ring_bell() = 0;
  /// True if this process and the peer ring each other's doorbells. Constant.
  virtual bool has_doorbells() const { return false; }
  /// With doorbells: wakes the peer if it sleeps. Call it after publish(). Any thread.
  virtual void wake() {}
};

/// Bytes of the pool that a program uses.
struct Block {
  uint64_t offset = 0;  ///< from the beginning of the pool; a multiple of a page
  uint64_t bytes = 0;
  std::byte* at = nullptr;  ///< zeros
};

/// A part of the pool as a record names it. Numbers of a peer's choice.
struct Place {
  uint16_t host = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Any thread may call each function, unless it states otherwise. No call waits for another process.
class Pool {
 public:
  virtual ~Pool() = default;

  // Constant.
  virtual uint16_t host() const = 0;
  /// Number of hosts that the pool was formatted for.
  virtual uint16_t hosts() const = 0;
  /// The pool's own address of a host: fd00::/8, the pool's identifier and the host's number.
  virtual Gid gid_of(uint16_t host) const = 0;
  /// Caches of the hosts are coherent: bytes that one host stores, another one loads without any instruction.
  virtual bool is_coherent() const = 0;

  // This process.
  /// Takes a process record, and publishes `description`. Once for each object. The first process after a crash of the
  /// host watches the heartbeats of the boot before for 2.5 seconds. Errors: EADDRINUSE, another boot of this host's
  /// number is alive; ENOSPC, no record is free; EBUSY, another process keeps the lock of the host.
  virtual Result<ProcessId> join(const Description& description) = 0;
  virtual Result<void> update(const Description& description) = 0;
  /// Ends the record: this process does not write any more. Called at exit too, where it takes no lock that another
  /// thread can hold.
  virtual void leave() = 0;
  /// Stores the heartbeat, and once a second frees what dead processes of this host left. Called at least ten times a
  /// second; silence of others counts in the time of these calls. One thread at a time.
  virtual void beat(int64_t now_ns) = 0;

  // Others.
  /// The living process with this address and slot; a silent one counts as living.
  virtual std::optional<ProcessId> find(const Gid& gid, uint32_t slot) = 0;
  /// The living processes with this address, of any slot.
  virtual std::vector<ProcessId> find_all(const Gid& gid) = 0;
  virtual std::optional<ProcessId> find_record(uint16_t host, uint16_t record) = 0;
  virtual std::optional<Description> describe(const ProcessId& process) = 0;
  /// The living processes that have joined a group, this one not among them.
  virtual std::vector<ProcessId> members(const Gid& group) = 0;
  virtual Life life(const ProcessId& process) = 0;

  // Channels. The callers of these hold one lock.
  /// Opens the channel to a process, which is not open at first. Errors: ENOSPC, no inbox is free; ECONNREFUSED, the
  /// process has ended.
  virtual Result<std::unique_ptr<Channel>> open_channel(const ProcessId& peer) = 0;
  /// Looks at the bells. Returns the peers whose channel has something new, and those that have offered a channel
  /// which this process has not opened yet. An offer that nobody answers is there again after a second. A peer that has
  /// closed its channel and opened another one is among the latter: close the channel to it first. Cheap if nothing
  /// has changed.
  struct News {
    std::vector<ProcessId> rang;     ///< look at the channel
    std::vector<ProcessId> offered;  ///< open_channel() answers the offer
  };
  virtual bool poll_bells(News* news) = 0;
  /// Destroys the channel. The inbox that the peer writes to is free as soon as the peer cannot write to it any more.
  /// Channels are closed before the pool is destroyed.
  virtual void close_channel(std::unique_ptr<Channel> channel) = 0;

  // Sleep.
  /// A descriptor that becomes readable when another process rings, or -1: there is no doorbell. Constant after join().
  virtual int doorbell() const = 0;
  /// A thread of this process is about to sleep on the doorbell (true), or has woken up (false). A full fence follows.
  /// Several threads may sleep. See fall_asleep() in sleep.h.
  virtual void announce_sleep(bool sleeps) = 0;
  /// Takes the rings so far: the descriptor is not readable until the next one. The caller looks for their reason next,
  /// at the channels and by poll_bells().
  virtual void take_rings() {}
  /// True if each living process of the pool rings this one.
  virtual bool is_rung_by_all() { return false; }

  // Memory of programs, in this host's territory. A quarter of its blocks is left for inboxes.
  /// Bytes of the longest allocation that succeeds at present.
  virtual uint64_t largest_allocation() { return 0; }
  /// ENOSPC: there is no room.
  virtual Result<Block> allocate(uint64_t bytes) = 0;
  /// Frees a block that no other host writes to. Returns false, and frees nothing, as long as a process of this host
  /// borrows it or holds the host's lock. The blocks of a process that has ended are free when no process has a channel
  /// to it or borrows them.
  virtual bool free(const Block& block) = 0;
  /// A block of another process of this host, the one with this instance, as memory of this process too. It is not
  /// given away until the pointer is destroyed, whatever its owner does. Null: that process has no such block, or the
  /// kernel has no room for a lock.
  virtual std::shared_ptr<std::byte> borrow(uint64_t instance, uint64_t offset, uint64_t bytes) = 0;
  /// The place of bytes of this process that lie in the pool; empty: they lie elsewhere.
  virtual std::optional<Place> place_of(const std::byte* at, uint64_t bytes) const = 0;
  /// Where this process loads and stores memory of another host. Null: the hosts' caches are not coherent, so that only
  /// the host itself writes there; or the place is not inside the host's blocks.
  virtual std::byte* reach([[maybe_unused]] const Place& place) { return nullptr; }
  /// Publishes bytes of this host's territory, so that other hosts can load them.
  virtual void write_back(const std::byte* at, uint64_t bytes) = 0;
  /// Copies bytes of a place to `to`. Returns false if the place is not inside the host's territory.
  virtual bool load(const Place& place, std::byte* to) = 0;
};

}  // namespace nupa::pool
