// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The segment: the memory file in which a process shows its queue pairs, keys and rings to other processes of the same
/// user. Everything here is position independent, starts as zeros in shared memory and is lock-free. A process may be
/// killed at any instruction: another process that waits for it detects the death (docs/design/shm.md describes each
/// unfinished step).
///
///     offset      size     what
///     0           64 KiB   SegmentHeader
///     64 KiB      2 MiB    QpShared[kSlotQp], of the first slot
///     +2 MiB      8 MiB    CqShared[kMaxCq]
///     +8 MiB      1 MiB    SrqShared[kMaxSrq]
///     12 MiB      32 MiB   MrShared[kMaxMr]
///     44 MiB      2 MiB    StatisticsShared[kSlotQp], of the first slot
///     47 MiB      192 KiB  ListenerShared[kMaxListeners]
///     48 MiB      grows    heap: rings, piece lists, bounce buffers, a QpBankShared for each further slot (pages,
///                          power-of-two sizes)

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nupa/types.h>

#include "shm/port_counts.h"

namespace nupa::shm {

constexpr uint64_t kMagic = 0x314745535041554eull;  // "NUAPSEG1", little endian
constexpr uint32_t kLayoutVersion = 16;

/// A queue pair number has 24 bits: 12 for the process on this host (slot 1 to 4094), 12 for the queue pair. A process
/// with more queue pairs takes further slots. The queue pairs of one slot are a bank. A process counts its banks from 0
/// and its queue pairs by an index: the bank above the low 12 bits (docs/design/many-queue-pairs.md).
constexpr uint32_t kIndexBits = 12;
constexpr uint32_t kSlotQp = 1u << kIndexBits;  ///< queue pair numbers of a slot
constexpr uint32_t kMaxBanks = 16;              ///< slots of a process
constexpr uint32_t kMaxQp = kMaxBanks * kSlotQp;
constexpr uint32_t kMaxSrq = 1u << kIndexBits;
constexpr uint32_t kMaxCq = 1u << 16;
constexpr uint32_t kMaxMr = 1u << 18;
constexpr uint32_t kMinSlot = 1;
constexpr uint32_t kMaxSlot = 4094;
constexpr uint32_t kMaxDevices = 16;
constexpr uint32_t kMaxGids = 32;  ///< of a device

constexpr uint32_t number_of(uint32_t slot, uint32_t index) { return slot << kIndexBits | index; }
constexpr uint32_t slot_of(uint32_t number) { return number >> kIndexBits; }
/// The position of a queue pair in its slot's tables.
constexpr uint32_t index_of(uint32_t number) { return number & (kSlotQp - 1); }
constexpr uint32_t bank_of(uint32_t index) { return index >> kIndexBits; }

constexpr uint64_t kHeaderOffset = 0;
constexpr uint64_t kQpOffset = 64 << 10;
constexpr uint64_t kCqOffset = kQpOffset + (2 << 20);
constexpr uint64_t kSrqOffset = kCqOffset + (8 << 20);
constexpr uint64_t kMrOffset = 12 << 20;
constexpr uint64_t kStatisticsOffset = 44 << 20;
constexpr uint64_t kListenerOffset = 47 << 20;
constexpr uint64_t kHeapOffset = 48 << 20;
constexpr uint64_t kPage = 4096;

/// Reasons why a peer wants the owner's attention: bits of SegmentHeader::attention.
///
/// Memory order: a peer stores what it wants, sets the object's bit, then the reason's bit, and then writes the owner's
/// eventfd. The owner reads the eventfd and takes the bits in the opposite order by exchanges. All are sequentially
/// consistent updates, so an owner that has taken a bit sees what was stored before it, and a bit that comes later is
/// followed by a write of the eventfd, which wakes the owner again.
namespace attention {
constexpr uint32_t kQp = 1u << 0;   ///< a bit in qp_attention: an error, wake of a waiting sender, agent work
constexpr uint32_t kCq = 1u << 1;   ///< a bit in cq_attention: an event to deliver, an overrun
constexpr uint32_t kSrq = 1u << 2;  ///< a bit in srq_attention: limit reached
constexpr uint32_t kAgent =
    1u << 3;  ///< a bit in agent_attention (by the requester's slot): a copy or atomic to execute
}  // namespace attention

/// A request to another process's service thread. It is for memory that neither a mapping nor CMA reaches: atomics on
/// unaligned ends of regions, and processes in other PID namespaces. It lies in the requester's segment.
///
/// Memory order: the requester releases the other fields and the bounce buffer by the state kAsked, and the owner
/// acquires them by its compare-exchange to kServing. The owner releases the result by kServed, and the requester
/// acquires it. kTaken and kFree are of the requester alone.
enum class AgentState : uint32_t { kFree = 0, kTaken = 1, kAsked = 2, kServed = 3, kServing = 4 };
/// The state with the number of the request in this place, so that an abandoned request is not taken for a later one.
constexpr uint32_t agent_word(uint32_t generation, AgentState state) {
  return generation << 3 | static_cast<uint32_t>(state);
}
constexpr AgentState agent_state_of(uint32_t word) { return static_cast<AgentState>(word & 7); }
constexpr uint32_t agent_generation_of(uint32_t word) { return word >> 3; }
enum class AgentOp : uint32_t { kWrite = 1, kRead = 2, kCompareSwap = 3, kFetchAdd = 4, kAtomicWrite = 5 };
struct alignas(64) AgentShared {
  std::atomic<uint32_t> state;  ///< agent_word()
  uint32_t op;                  ///< AgentOp
  uint64_t target_instance;     ///< instance of the process that executes it
  uint64_t address;             ///< in the target's address space
  uint64_t length;
  uint64_t bounce;   ///< heap offset in the requester's segment
  uint64_t operand;  ///< compare value, addend or the bytes to write; then the value found
  uint64_t swap;
  uint32_t status;  ///< errno of the copy, 0: done; ESTALE: requested before the last revocation, and not done
  uint32_t epoch;   ///< the target's agent_epoch when the key was checked
};
static_assert(sizeof(AgentShared) == 64);
constexpr uint32_t kAgents = 16;
constexpr uint64_t kBounceBytes = 256 << 10;

/// A queue pair's membership in a multicast group. `qp` is released when the group is written, and a sender acquires
/// it. A sender that reads an entry while it changes may combine the old queue pair with the new group. That queue pair
/// drops the datagram unless it has the same Q_Key.
struct McastShared {
  std::atomic<uint32_t> qp;  ///< index plus 1; 0: free entry
  uint32_t pad;
  Gid gid;
};
constexpr uint32_t kMaxMcast = 1024;

/// A service that the process listens for (docs/design/connection-manager.md). `in_use` is set last and cleared first.
/// A process that reads an entry while it changes may ask for a service that does not exist, or ask the wrong process,
/// which rejects the request.
struct ListenerShared {
  std::atomic<uint32_t> in_use;
  uint32_t flags;  ///< kListen...
  uint64_t service_id;
  uint64_t mask;
  Gid address;
  uint64_t pad;
};
static_assert(sizeof(ListenerShared) == 48);
constexpr uint32_t kMaxListeners = 4096;
constexpr uint32_t kListenAnyAddress = 1u << 0;
constexpr uint32_t kListenOnlyV4 = 1u << 1;
constexpr uint32_t kListenOnlyV6 = 1u << 2;

/// The place of a further bank of the process. It does not change once `slot` is set.
struct BankPlace {
  std::atomic<uint32_t> slot;  ///< written last; 0: no bank
  uint32_t pad;
  std::atomic<uint64_t> offset;  ///< offset of its QpBankShared in the heap
};

/// The GID table of a device's port.
struct GidTableShared {
  uint32_t count;
  Gid gids[kMaxGids];
};

struct alignas(64) SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slot;
  uint64_t instance;  ///< random; distinguishes this process from an earlier one in the same slot
  int32_t pid;        ///< in the owner's namespace; for people
  uint32_t uid;
  uint64_t start_ns;       ///< CLOCK_REALTIME when it opened the device
  char command[64];        ///< for people
  uint32_t shares_memory;  ///< 1: peers may use the shm transport to it; the transport writes it
  uint32_t device_count;
  std::atomic<uint32_t> qp_high_water;  ///< queue pairs of the first bank at and above this were never used
  std::atomic<uint32_t> closing;        ///< 1: the process exits cleanly; peers do not take its end for a fault
  GidTableShared devices[kMaxDevices];

  alignas(64) std::atomic<uint32_t> attention;
  alignas(64) std::atomic<uint32_t> bank_attention;              ///< by bank: one of its attention bits is set
  alignas(64) std::atomic<uint64_t> qp_attention[kSlotQp / 64];  ///< of the first bank
  alignas(64) std::atomic<uint64_t> srq_attention[kMaxSrq / 64];
  alignas(64) std::atomic<uint64_t> cq_attention[kMaxCq / 64];
  alignas(64) std::atomic<uint64_t> agent_attention[4096 / 64];
  AgentShared agents[kAgents];
  std::atomic<uint32_t> agent_epoch;                   ///< counts revocations by this process: keys, receives
  alignas(64) std::atomic<uint32_t> mcast_high_water;  ///< entries at and above were never used
  McastShared mcast[kMaxMcast];
  alignas(64) std::atomic<uint32_t> listener_high_water;  ///< entries at and above were never used
  BankPlace further_banks[kMaxBanks - 1];                 ///< from the second bank on; ends at the first without slot
};
static_assert(sizeof(SegmentHeader) <= kQpOffset);
static_assert(sizeof(ListenerShared) * kMaxListeners <= kHeapOffset - kListenerOffset);

/// True if a device of the process has the GID. The counts belong to another process and are not trusted.
inline bool has_gid(const SegmentHeader& header, const Gid& gid) {
  for (uint32_t i = 0; i < std::min(header.device_count, kMaxDevices); ++i) {
    const GidTableShared& table = header.devices[i];
    const Gid* end = table.gids + std::min(table.count, kMaxGids);
    if (std::find(table.gids, end, gid) != end) return true;
  }
  return false;
}

/// The place of a ring: heap offset (page aligned, below 2^48), with log2 of its slots in the low bits and a generation
/// in the high bits. The generation distinguishes a ring that was moved away and back from the old one. 0: no ring.
constexpr uint64_t pack_ring(uint64_t offset, uint32_t log2_slots, uint16_t generation = 0) {
  return uint64_t{generation} << 48 | offset | log2_slots;
}
constexpr uint16_t ring_generation(uint64_t where) { return static_cast<uint16_t>(where >> 48); }
constexpr uint64_t ring_offset(uint64_t where) { return where & ((uint64_t{1} << 48) - kPage); }
constexpr uint32_t ring_log2(uint64_t where) { return static_cast<uint32_t>(where & 63); }
/// No ring has more slots (max_cqe). A place with more is rejected.
constexpr uint32_t kMaxRingLog2 = 20;
/// Bounds the search for a position in a ring. A call passes the positions that other threads took, at most this many
/// beside the number of slots. If there are more, the ring's owner has forged the stamps, and the search would never
/// end. Passing them takes about a millisecond.
constexpr uint32_t kMostLostPositions = 1u << 16;

/// States of a receive slot: the low two bits of its stamp. Above them is the turn (position >> log2 slots). A claimed
/// slot names the claiming process in the top 16 bits, so that a dead claimer can be distinguished from a slow one.
enum class SlotState : uint64_t { kFree = 0, kClaimed = 1, kReady = 2 };
constexpr uint64_t stamp(uint64_t turn, SlotState state) { return turn << 2 | static_cast<uint64_t>(state); }
constexpr uint64_t claim_stamp(uint64_t turn, uint32_t owner_slot) {
  return uint64_t{owner_slot} << 48 | turn << 2 | static_cast<uint64_t>(SlotState::kClaimed);
}
constexpr uint32_t claimer_of(uint64_t stamp_value) { return static_cast<uint32_t>(stamp_value >> 48); }
constexpr SlotState slot_state_of(uint64_t stamp_value) { return static_cast<SlotState>(stamp_value & 3); }
constexpr uint64_t kStampBody = (uint64_t{1} << 48) - 1;
/// The tag of a process in its claims: its slot with four bits of its instance, so that a new process in a dead
/// process's slot is not taken for the dead one.
constexpr uint32_t owner_tag(uint32_t slot, uint64_t instance) {
  return slot | static_cast<uint32_t>(instance & 0xf) << 12;
}

/// The contents of a completion.
struct CqEntry {
  uint64_t wr_id = 0;
  uint64_t timestamp = 0;
  uint32_t byte_len = 0;
  uint32_t imm_data = 0;
  uint32_t qp_num = 0;
  uint32_t src_qp = 0;
  uint32_t sq_position = 0;  ///< send completions: the send queue is free up to this position
  uint32_t srq_number = 0;   ///< receive completions from a shared receive queue; 0 otherwise
  uint8_t status = 0;        ///< WcStatus, or kVoidStatus
  uint8_t opcode = 0;        ///< WcOpcode
  uint8_t wc_flags = 0;
  uint8_t solicited = 0;
  uint32_t vendor_err = 0;
  uint8_t sl = 0;
  uint8_t dlid_path_bits = 0;
  uint16_t slid = 0;  ///< 0 if the address was global
};

/// A slot of a completion queue: one cache line.
struct alignas(64) CqSlot {
  CqEntry entry;
  std::atomic<uint64_t> stamp;  ///< the turn that the entry belongs to; written last
};
static_assert(sizeof(CqEntry) == 56 && sizeof(CqSlot) == 64);
// CompletionRing::write() puts an entry together from words.
static_assert(std::endian::native == std::endian::little && offsetof(CqEntry, timestamp) == 8 &&
              offsetof(CqEntry, byte_len) == 16 && offsetof(CqEntry, imm_data) == 20 &&
              offsetof(CqEntry, qp_num) == 24 && offsetof(CqEntry, src_qp) == 28 &&
              offsetof(CqEntry, sq_position) == 32 && offsetof(CqEntry, srq_number) == 36 &&
              offsetof(CqEntry, status) == 40 && offsetof(CqEntry, opcode) == 41 && offsetof(CqEntry, wc_flags) == 42 &&
              offsetof(CqEntry, solicited) == 43 && offsetof(CqEntry, vendor_err) == 44 &&
              offsetof(CqEntry, sl) == 48 && offsetof(CqEntry, dlid_path_bits) == 49 && offsetof(CqEntry, slid) == 50);
/// Status of an entry whose writer died before it was complete. The reader skips it.
constexpr uint8_t kVoidStatus = 0xff;

/// The completions for which a completion queue raises an event.
enum class Armed : uint32_t { kNo = 0, kSolicited = 1, kNext = 2 };
/// The word that arms a completion queue: Armed in the low two bits, above it how often it was taken back to kNo. That
/// number is also the number of events to raise. With both in one word it is right even if the process that disarmed
/// the queue died.
constexpr uint64_t pack_armed(uint32_t disarmed, Armed armed) {
  return uint64_t{disarmed} << 2 | static_cast<uint64_t>(armed);
}
constexpr Armed armed_of(uint64_t word) { return static_cast<Armed>(word & 3); }
constexpr uint32_t disarmed_of(uint64_t word) { return static_cast<uint32_t>(word >> 2); }

struct alignas(64) CqShared {
  // Read by all processes and hardly ever written: the owner reads it with each empty poll.
  std::atomic<uint64_t> where;
  uint32_t channel;  ///< index of the owner's completion channel plus 1; 0: none
  uint32_t flags;    ///< kCqTimestamps, kCqIgnoreOverrun
  std::atomic<uint32_t> overrun;
  // Read by producers with each entry if there is a channel, written with each event.
  alignas(64) std::atomic<uint64_t> armed;  ///< pack_armed; the process that takes it back to kNo raises the event
  std::atomic<uint32_t> events;  ///< events raised so far; wraps; at most one for each time that the queue was disarmed
  /// Events raised by processes without the channel's descriptor: the owner wakes the sleepers.
  std::atomic<uint32_t> unsignalled;
};
static_assert(sizeof(CqShared) == 128 && sizeof(CqShared) * kMaxCq <= kSrqOffset - kCqOffset);
constexpr uint32_t kCqTimestamps = 1;
constexpr uint32_t kCqIgnoreOverrun = 2;

/// One posted receive. A cache line holds the head and two entries of its scatter list; longer lists follow.
struct alignas(64) RecvSlot {
  std::atomic<uint64_t> stamp;  ///< kFree, kReady (posted) or kClaimed
  uint64_t wr_id;
  uint32_t num_sge;
  std::atomic<uint32_t> claim_qp;    ///< written by the claimer: the owner's queue pair; 0: not written yet
  std::atomic<uint64_t> completion;  ///< written by the claimer: the intent of CompletionRing::push
  Sge sge[2];
};
static_assert(sizeof(RecvSlot) == 64);

/// A receive queue, of a queue pair or shared. Three cache lines separate the fields that senders read with each
/// message, those that the owner writes with each receive, and those that senders write.
struct RecvRing {
  std::atomic<uint64_t> where;
  uint32_t stride;  ///< bytes between slots
  uint32_t max_sge;
  uint32_t pd;                                 ///< protection domain of the receive buffers
  std::atomic<uint32_t> limit;                 ///< shared receive queues: armed limit, 0: none
  uint32_t rings;                              ///< how many rings it has had, counted by the owner; for pack_ring()
  alignas(64) std::atomic<uint64_t> posted;    ///< positions below this were posted; for limits
  alignas(64) std::atomic<uint64_t> consumed;  ///< a hint: the first position that may be unclaimed
};

/// State and incarnation of a queue pair in one word: the state in the low 8 bits, above it a number that grows with
/// each RESET. A peer of an earlier incarnation detects with one load that it must not use the queue pair.
///
/// Memory order: the owner stores the other fields of QpShared first, and changes this word by sequentially consistent
/// updates. A peer acquires the word before it reads the fields. It holds its send lock meanwhile, whose barrier pairs
/// with that of the owner after a change (SendLock).
constexpr uint64_t pack_state(uint64_t epoch, QpState state) { return epoch << 8 | static_cast<uint64_t>(state); }
constexpr QpState state_of(uint64_t word) { return static_cast<QpState>(word & 0xff); }
constexpr uint64_t epoch_of(uint64_t word) { return word >> 8; }

/// The event of a failure with the incarnation that failed, so that a late report does not count for the next
/// incarnation.
constexpr uint32_t pack_error(uint64_t epoch, EventType event) {
  return static_cast<uint32_t>(epoch << 8) | (static_cast<uint32_t>(event) + 1);
}
/// The event plus 1 if it is of this incarnation, 0 otherwise.
constexpr uint32_t error_of(uint32_t error, uint64_t epoch) {
  return error >> 8 == (epoch & 0xffffff) ? error & 0xff : 0;
}

/// Counters for people (`nupa stat`): written under the send lock, read by any process.
struct QpCounters {
  std::atomic<uint64_t> messages;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> errors;
  std::atomic<uint64_t> rnr;
  /// The messages and bytes, of those above, that are in the port's counts.
  std::atomic<uint64_t> counted_messages;
  std::atomic<uint64_t> counted_bytes;
};

/// A transport's name in one word, at most eight characters, the first in the lowest byte.
constexpr uint64_t pack_name(std::string_view name) {
  uint64_t word = 0;
  for (size_t i = 0; i < std::min<size_t>(name.size(), sizeof word); ++i)
    word |= uint64_t{static_cast<uint8_t>(name[i])} << 8 * i;
  return word;
}
/// Unpacks the name. Characters that are not printable become question marks, because another process may have written
/// the word.
inline std::string unpack_name(uint64_t word) {
  std::string name;
  for (; word != 0; word >>= 8) {
    const auto character = static_cast<char>(word & 0xff);
    name += character > ' ' && character <= '~' ? character : '?';
  }
  return name;
}

/// A transport's statistics of a queue pair, for people: written by its owner, read by any process that has the
/// transport's format.
struct alignas(64) StatisticsShared {
  static constexpr uint32_t kBytes = 408;

  std::atomic<uint64_t> transport;  ///< pack_name of the transport that wrote the bytes; 0: none has
  PortCountsShared port;
  std::byte bytes[kBytes];
};
static_assert(sizeof(StatisticsShared) == 512 &&
              sizeof(StatisticsShared) * kSlotQp <= kListenerOffset - kStatisticsOffset);

/// Where the port's counts of a queue pair come from.
enum class Counting : uint32_t {
  kNone = 0,         ///< it was never connected, and its statistics were never touched
  kByTransport = 1,  ///< StatisticsShared::port
  kByMessages = 2,   ///< there, and QpCounters since the last connection: see Endpoint::Traits::loops_back
};

struct alignas(64) QpShared {
  // Line 0: read by senders with each message; it changes only with the state.
  std::atomic<uint64_t> state;   ///< pack_state; 0 with in_use 0: no such queue pair
  std::atomic<uint32_t> in_use;  ///< set last, cleared first; peers may read it at any moment
  std::atomic<uint32_t> qp_num;
  std::atomic<uint32_t> type;  ///< QpType
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> access;  ///< access bits for inbound requests
  std::atomic<uint32_t> remote_qpn;
  std::atomic<uint32_t> remote_slot;
  std::atomic<uint32_t> qkey;
  std::atomic<uint32_t> recv_cq;     ///< index
  std::atomic<uint32_t> srq;         ///< index plus 1; 0: own receive ring
  std::atomic<uint64_t> xrcd;        ///< identity of the XRC domain, 0: none
  std::atomic<uint32_t> rnr_timer;   ///< IBTA table 45 code
  std::atomic<uint32_t> read_depth;  ///< READs and atomics that it accepts at a time
  // Line 1: the send lock. Even: free. Odd: the owner executes an operation and may access peers' memory.
  alignas(64) std::atomic<uint32_t> send_lock;
  /// Odd: a copy engine copies for the queue pair, and accesses the memory of its peer (docs/design/copy-engines.md).
  /// It becomes odd with the send lock held, and even at any time.
  std::atomic<uint32_t> copying;
  QpCounters counters;
  // Line 2: requests of peers to the owner.
  alignas(64) std::atomic<uint32_t> error;  ///< pack_error: the event of a failure that a peer's request caused
  std::atomic<uint32_t> sender_waits;       ///< a sender found no receive posted: wake it at the next post
  std::atomic<uint32_t> wake;               ///< a receive that this queue pair's sender waited for may be posted now
  std::atomic<uint32_t> established;        ///< 1: a request arrived in state RTR; 2: the owner has noticed
  std::atomic<uint64_t> received;           ///< receive completions polled, for people
  std::atomic<uint64_t> transport;          ///< pack_name; 0: not connected. UD: the first transport used
  std::atomic<uint32_t> device;             ///< index of the device that it was created on
  std::atomic<Counting> counting;
  // Line 3 to 5: the receive ring.
  alignas(64) RecvRing recv;
};
static_assert(sizeof(QpShared) <= 512 && sizeof(QpShared) * kSlotQp <= kCqOffset - kQpOffset);

/// The tables of a further slot, which a process takes when it has no free queue pair number left.
struct QpBankShared {
  alignas(64) std::atomic<uint64_t> attention[kSlotQp / 64];
  alignas(64) std::atomic<uint32_t> high_water;  ///< queue pairs at and above this were never used
  QpShared qp[kSlotQp];
  StatisticsShared statistics[kSlotQp];
};
static_assert(sizeof(QpBankShared) <= 4 << 20);

struct alignas(64) SrqShared {
  std::atomic<uint32_t> in_use;  ///< set last, cleared first
  uint32_t number;
  uint32_t type;  ///< SrqType
  uint32_t cq;    ///< XRC: index of the completion queue
  uint64_t xrcd;  ///< XRC: identity of the domain
  alignas(64) RecvRing recv;
};
static_assert(sizeof(SrqShared) * kMaxSrq <= kMrOffset - kSrqOffset);

enum class MrKind : uint32_t {
  kMemory = 1,  ///< the owner's address space; parts of it may be in the region file
  kWindow = 2,  ///< a memory window on another entry
  kNull = 3,    ///< reads zeros, discards writes; local only
};

/// A part of a region that a file backs: the owner's addresses [begin, end), whole pages. The file is the region file,
/// or the memory that a transport has lent to the owner.
struct MrPiece {
  uint64_t begin;
  uint64_t end;
  uint64_t file_offset;
};
constexpr uint32_t kInlinePieces = 2;

/// One registered region or bound window. The key is written last (release) and cleared first (with a full barrier
/// before the other fields change). A reader loads it before and after it reads the entry (acquire, and a fence).
struct alignas(64) MrShared {
  std::atomic<uint32_t> key;  ///< lkey and rkey; 0: invalid
  uint32_t pd;
  uint32_t access;
  uint32_t kind;   ///< MrKind
  uint64_t start;  ///< first address in terms of the key
  uint64_t length;
  uint64_t delta;   ///< owner's virtual address minus key address
  uint64_t pieces;  ///< heap offset of MrPiece[piece_count] if there are more than kInlinePieces
  uint32_t piece_count;
  uint32_t parent;  ///< kWindow: index of the region; type 2 windows are bound to queue pair `qp_num`
  uint32_t qp_num;
  uint32_t generation;  ///< grows with each reuse of the entry
  MrPiece inline_pieces[kInlinePieces];
  uint64_t lent_to;  ///< the owner as the transport names it that lent the memory; 0: the region file has the pieces
};
static_assert(sizeof(MrShared) == 128 && sizeof(MrShared) * kMaxMr <= kStatisticsOffset - kMrOffset);

constexpr uint32_t kKeyBits = 8;  ///< the low bits of a key, which the owner may choose (IBTA 10.6.3.4)
constexpr uint32_t key_index(uint32_t key) { return key >> kKeyBits; }

}  // namespace nupa::shm
