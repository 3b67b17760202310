// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The ring of one captured process: a memory file that the command makes and the process maps.
///
///     offset  size          what
///     0       24 KiB        RingHeader
///     24 KiB  capacity      records, each of RecordHeader and the bytes of a frame, in units of 64 bytes
///
/// Memory order: a producer takes room by a compare-exchange of `head`, writes the record, and releases it by `stamp`,
/// which is the record's position plus 1. The reader acquires the stamp, fills the record with zeros and releases the
/// room by `tail`, which producers acquire. So room that is not committed has zeros for a stamp, whatever was there
/// before. A record does not go beyond the end of the ring: a pad takes the rest.
///
/// Neither side trusts the other with more than the memory of the ring: each checks what it reads before it uses it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <nupa/types.h>

namespace nupa::capture {

constexpr uint64_t kRingMagic = 0x3150414341505553ull;  // little endian
constexpr uint32_t kRingVersion = 1;
constexpr uint32_t kRecordUnit = 64;
constexpr uint32_t kMostDevices = 16;
constexpr uint32_t kMostTransports = 8;
constexpr uint32_t kMostQueuePairs = 64;
constexpr uint32_t kMinCapacity = 64 << 10;
constexpr uint32_t kMaxCapacity = 1u << 30;
constexpr uint32_t kNameBytes = 32;

/// The classes of packets that filters name: bits.
namespace packet_class {
constexpr uint32_t kSend = 1u << 0;
constexpr uint32_t kWrite = 1u << 1;
constexpr uint32_t kRead = 1u << 2;    ///< requests and responses
constexpr uint32_t kAtomic = 1u << 3;  ///< requests and responses, and ATOMIC_WRITE
constexpr uint32_t kAck = 1u << 4;     ///< acknowledgements and refusals
constexpr uint32_t kCm = 1u << 5;      ///< datagrams to queue pair 1
constexpr uint32_t kOther = 1u << 6;   ///< congestion notifications, and packets that only NUPA has
constexpr uint32_t kAll = (1u << 7) - 1;
}  // namespace packet_class

enum class Direction : uint8_t { kInbound = 1, kOutbound = 2 };  // as in epb_flags of pcapng

/// The packets that the command wants. 0 and empty: all.
struct Filters {
  uint32_t snaplen = 0;     ///< bytes of a frame that are kept
  uint32_t classes = 0;     ///< packet_class bits
  uint32_t directions = 0;  ///< 1 << Direction
  uint32_t qp_count = 0;
  std::array<uint32_t, kMostQueuePairs> qps{};
  std::array<uint64_t, kMostTransports> transports{};    ///< packed names; the first 0 ends them
  std::array<char[kNameBytes], kMostDevices> devices{};  ///< the first empty one ends them
};

struct alignas(64) RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t capacity;  ///< bytes of the records; a power of two
  Filters filters;    ///< written before the process has the ring

  // Written by the process before it answers.
  char program[64];
  uint32_t device_count;
  char devices[kMostDevices][kNameBytes];

  alignas(64) std::atomic<uint64_t> head;  ///< of producers: bytes taken so far
  alignas(64) std::atomic<uint64_t> tail;  ///< of the reader: bytes given back so far
  /// Packed names of the transports that have recorded, by Record::transport. A place is taken by its first packet.
  alignas(64) std::atomic<uint64_t> transports[kMostTransports];
  /// Packets that found no room.
  alignas(64) std::atomic<uint64_t> dropped[kMostDevices][kMostTransports];
};
constexpr uint64_t kRecordsOffset = 24 << 10;
static_assert(sizeof(RingHeader) <= kRecordsOffset);

enum class RecordKind : uint8_t { kPacket = 1, kPad = 2 };

/// Properties of a frame for the reader.
namespace frame_flag {
constexpr uint16_t kSynthetic = 1u << 0;   ///< stands for a request; the reader computes its CRC
constexpr uint16_t kKnownId = 1u << 1;     ///< IPv4: the identification in the frame is that of the packet
constexpr uint16_t kWithoutCrc = 1u << 2;  ///< both sides omit the CRC
}  // namespace frame_flag

struct RecordHeader {
  std::atomic<uint64_t> stamp;
  uint32_t size;      ///< of the whole record, a multiple of kRecordUnit
  uint32_t captured;  ///< bytes of the frame that follow
  uint32_t length;    ///< bytes of the frame
  uint32_t qp;        ///< the queue pair of the recording process; 0: none
  int64_t time_ns;    ///< CLOCK_MONOTONIC
  RecordKind kind;
  Direction direction;
  uint8_t device;
  uint8_t transport;  ///< index into RingHeader::transports
  uint16_t flags;     ///< frame_flag bits
  uint16_t udp_port;  ///< the real destination port
  uint8_t unused[24];
};
static_assert(sizeof(RecordHeader) == kRecordUnit && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// A record as the reader has checked it.
struct Record {
  uint32_t size = 0;    ///< of its room
  uint32_t length = 0;  ///< bytes of the frame
  uint32_t qp = 0;
  int64_t time_ns = 0;
  Direction direction = Direction::kOutbound;
  uint8_t device = 0;
  uint8_t transport = 0;
  uint16_t flags = 0;
  uint16_t udp_port = 0;
  std::span<const std::byte> bytes;  ///< in the ring: those that were kept
};

/// One side's view of a mapped ring.
class Ring {
 public:
  Ring() = default;
  /// `at`: kRecordsOffset + capacity bytes. `capacity`: was checked by is_valid().
  Ring(void* at, uint32_t capacity)
      : header_(static_cast<RingHeader*>(at)),
        records_(static_cast<std::byte*>(at) + kRecordsOffset),
        mask_(capacity - 1) {}

  static constexpr bool is_valid(uint64_t capacity) {
    return capacity >= kMinCapacity && capacity <= kMaxCapacity && (capacity & (capacity - 1)) == 0;
  }
  static constexpr uint64_t file_bytes(uint32_t capacity) { return kRecordsOffset + capacity; }

  RingHeader& header() const { return *header_; }
  uint32_t capacity() const { return mask_ + 1; }

  // Producers: any thread.
  /// Takes room for a record with `bytes` behind its header. Null: there is none. *position: for commit().
  RecordHeader* take(uint32_t bytes, uint64_t* position) const;
  static void commit(RecordHeader& record, uint64_t position) {
    record.stamp.store(position + 1, std::memory_order_release);
  }

  // The reader: one thread.
  enum class Next : uint8_t { kNone, kRecord, kBroken };
  /// The oldest record, without pads. kBroken: the producer does not keep to the format.
  Next next(Record* record) const;
  /// Gives the room of the record that next() returned back.
  void drop(const Record& record) const { drop_bytes(record.size); }
  /// True if room is taken and not committed. With a dead producer it stays so.
  bool has_unfinished() const {
    return header_->head.load(std::memory_order_acquire) != header_->tail.load(std::memory_order_relaxed);
  }

 private:
  void drop_bytes(uint32_t size) const;
  RecordHeader& at(uint64_t position) const { return *reinterpret_cast<RecordHeader*>(records_ + (position & mask_)); }

  RingHeader* header_ = nullptr;
  std::byte* records_ = nullptr;
  uint32_t mask_ = 0;
};

}  // namespace nupa::capture
