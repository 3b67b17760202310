// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where everything lies in a pool, and what its lines hold. docs/reference/pool-layout.md has the tables.
///
///     0          HeaderLine                    written by `nupa pool format` alone
///     64 KiB     a page for each host          written by that host
///     256 KiB    a territory for each host     written by that host; bells and inboxes by the senders
///
/// A territory: the process records, the block table, the blocks.
///
/// Three kinds of lines follow from the rule that a reader can meet a line in the middle of its change:
/// - a line with a key in word 0. Its other words change only while word 0 is 0, and no key comes twice. Readers use
///   copy_line().
/// - a line of one word.
/// - a line of the block table. Its other words change only while word 0 marks the block as free.
///
/// Numbers are little endian. No function here does I/O.

#include <nupa/result.h>
#include <nupa/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/pool/medium/cache_policy.h"

namespace nupa::pool {

inline constexpr uint64_t kMagic = 0x4c4f4f504150554eull;  ///< "NUPAPOOL"
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kMaxHosts = 32;
inline constexpr uint32_t kMaxRecords = 256;   ///< process records of a host
inline constexpr uint32_t kMaxSlots = 16;      ///< of a process (shm::kMaxBanks)
inline constexpr uint32_t kMaxGids = 64;       ///< of a process
inline constexpr uint32_t kMaxGroups = 128;    ///< of a process
inline constexpr uint32_t kMaxChannels = 128;  ///< of a process
inline constexpr uint32_t kLeastRingLines = 64;
inline constexpr uint32_t kMostRingLines = 1 << 16;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kLeastBlockBytes = kPageBytes;
inline constexpr uint64_t kMostBlockBytes = 1 << 20;
inline constexpr uint64_t kHostsOffset = 64 << 10;
inline constexpr uint64_t kTerritoriesOffset = 256 << 10;
inline constexpr uint64_t kTerritoryAlignment = 64 << 10;
inline constexpr uint64_t kRecordBytes = 32 << 10;
inline constexpr uint64_t kMostPoolBytes = uint64_t{1} << 46;

using Uuid = std::array<uint8_t, 16>;

/// The first line of the pool. Key: the magic.
struct HeaderLine {
  uint64_t magic = kMagic;
  uint32_t version = kLayoutVersion;
  uint32_t hosts = 0;
  Uuid uuid{};
  uint64_t bytes = 0;  ///< of the pool; the medium may be larger
  uint32_t block_bytes = 0;
  uint32_t ring_lines = 0;   ///< of each inbox
  uint32_t records = 0;      ///< process records of each host
  uint32_t checksum = 0;     ///< CRC-32 of this line with 0 here
  uint64_t formatted_s = 0;  ///< CLOCK_REALTIME, for people
};

// The page of a host. Lines:
inline constexpr uint32_t kHostLine = 0;
inline constexpr uint32_t kHostBeatLine = 1;     ///< one word: the heartbeat of any process of the host
inline constexpr uint32_t kRecordsUsedLine = 2;  ///< one word: records from this number on were never used
inline constexpr uint32_t kLastCheckLine = 3;    ///< the last `nupa pool check` of the host
inline constexpr uint32_t kCheckLines = 16;      ///< from here on: `nupa pool check`
inline constexpr uint32_t kNumberOfCheckLines = 48;

/// Key: random for each boot of the host.
struct HostLine {
  uint64_t incarnation = 0;
  std::array<uint8_t, 16> boot_id{};  ///< of the kernel
  /// The file through which the host's processes open the pool, because they lock it. Number of the device and inode.
  uint64_t file_device = 0;
  uint64_t file_inode = 0;
  uint64_t since_s = 0;  ///< CLOCK_REALTIME, for people
  std::array<uint64_t, 2> reserved{};
};

/// The result of the last `nupa pool check` of a host. Key: random.
struct CheckLine {
  uint64_t key = 0;
  uint64_t at_s = 0;  ///< CLOCK_REALTIME
  float load_ns = 0;
  float store_ns = 0;
  float flush_ns = 0;
  float to_mb_per_s = 0;
  float from_mb_per_s = 0;
  float one_way_ns = 0;
  uint32_t lines = 0;  ///< that were exchanged with the other host; 0: it was measured alone
  uint32_t wrong_lines = 0;
  uint16_t peer = 0;
  std::array<uint16_t, 7> reserved{};
};

// A process record. Lines:
inline constexpr uint32_t kProcessLine = 0;
inline constexpr uint32_t kBeatLine = 1;     ///< one word: changes ten times a second
inline constexpr uint32_t kSleepLine = 2;    ///< one word: 1 if the process sleeps on its doorbell
inline constexpr uint32_t kVersionLine = 3;  ///< one word: version of the description; its copy is version % 2
inline constexpr uint32_t kOffersLine = 4;   ///< one word: offers_word()
inline constexpr uint32_t kDoorbellLine = 5;
/// One word, which counts rings: for DoorbellKind::kFutex, whose processes share one memory. All of them write it.
inline constexpr uint32_t kDoorbellWordLine = 6;
inline constexpr uint32_t kBellLines = 8;  ///< one for each host, one word each, written by that host's processes
inline constexpr uint32_t kDescriptionLines = 40;
inline constexpr uint32_t kOfferLines = 256;
inline constexpr uint32_t kAcceptLines = kOfferLines + kMaxChannels;
static_assert(kBellLines + kMaxHosts <= kDescriptionLines);
static_assert((kAcceptLines + kMaxChannels) * kLineBytes == kRecordBytes);

/// Key: random for each process. 0: the record is free, and its process does not
/// write any more.
struct ProcessLine {
  uint64_t instance = 0;
  uint64_t incarnation = 0;  ///< of the host
  uint32_t pid = 0;          ///< in the process's namespace, for people
  uint32_t uid = 0;
  uint64_t since_s = 0;
  char command[32] = {};
};

/// How a process is woken, and how it wakes others.
enum class DoorbellKind : uint32_t {
  kNone = 0,
  kFutex = 1,    ///< futex(2) at a word of the pool: processes of one machine that map the same file
  kIvshmem = 2,  ///< an interrupt of an ivshmem device
};

/// Constant in the life of a process. Key: its instance, so that the line of an earlier process means nothing.
struct DoorbellLine {
  uint64_t instance = 0;
  DoorbellKind kind = DoorbellKind::kNone;
  // kIvshmem; else 0.
  uint32_t vector = 0;      ///< its interrupt wakes the process
  uint32_t guest = 0;       ///< number of its machine at the device
  uint32_t descriptor = 0;  ///< of the device in the process, for others of its host
  std::array<uint64_t, 5> reserved{};
};

/// The description of a process. Two copies, so that one of them can be read while the other one changes.
struct DescriptionData {
  uint16_t slots = 0;
  uint16_t gids = 0;
  uint16_t groups = 0;
  uint16_t receives_for_host = 0;
  std::array<uint8_t, kLineBytes - 8> reserved{};
  std::array<uint32_t, kMaxSlots> slot{};
  std::array<Gid, kMaxGids> gid{};
  std::array<Gid, kMaxGroups> group{};
};
inline constexpr uint32_t kDescriptionCopyLines = lines_of(sizeof(DescriptionData));
static_assert(sizeof(DescriptionData) % kLineBytes == 0);
static_assert(kDescriptionLines + 2 * kDescriptionCopyLines <= kOfferLines);

/// Offers of a process: how often they changed, and how many lines were ever used.
constexpr uint64_t offers_word(uint64_t changes, uint32_t used) { return changes << 16 | used; }
constexpr uint32_t offers_used(uint64_t word) { return word & 0xffff; }
static_assert(kMaxChannels <= 0xffff);

/// "Here is an inbox for you." Key: a number that this process uses once, larger than those before.
struct OfferLine {
  uint64_t key = 0;
  uint64_t peer_instance = 0;
  uint64_t offset = 0;  ///< of the inbox, from the beginning of the pool
  uint16_t peer_host = 0;
  uint16_t peer_record = 0;
  uint32_t lines = 0;  ///< of its ring
  std::array<uint64_t, 4> reserved{};
};

/// "I write to your inbox, and to memory that you have granted to me." It stands as long as this process does, and as
/// long as a line of that inbox can be dirty in a cache of this host.
struct AcceptLine {
  uint64_t key = 0;  ///< of the peer's offer
  uint64_t peer_instance = 0;
  uint64_t offset = 0;
  uint16_t peer_host = 0;
  uint16_t peer_record = 0;
  uint32_t lines = 0;
  std::array<uint64_t, 4> reserved{};
};

/// An inbox: the line in which the writer reports how far it has read the opposite ring, and the ring.
constexpr uint64_t inbox_bytes(uint32_t ring_lines) { return (uint64_t{ring_lines} + 1) * kLineBytes; }

/// Blocks that memory of programs may take: the others are for inboxes.
constexpr uint32_t program_blocks(uint32_t blocks) { return blocks - blocks / 4; }

/// The use of a block. Only the first block of an extent has a line that means something.
enum class BlockKind : uint8_t { kFree = 0, kProgram = 1, kInbox = 2 };

/// Word 0 has all that a walk through the table needs, so that no crash leaves the table in between.
struct BlockLine {
  uint64_t word = 0;  ///< block_word(); 0: free up to the end of the table
  uint64_t owner_instance = 0;
  uint64_t writer_instance = 0;     ///< kInbox
  uint64_t writer_incarnation = 0;  ///< kInbox: of the writer's host
  uint16_t writer_host = 0;
  uint16_t writer_record = 0;
  uint32_t reserved = 0;
  std::array<uint64_t, 3> more_reserved{};
};
constexpr uint64_t block_word(BlockKind kind, uint32_t count, uint16_t owner_record) {
  return uint64_t{owner_record} << 32 | uint64_t{count} << 4 | static_cast<uint64_t>(kind);
}
inline constexpr uint32_t kMaxBlocks = (1u << 28) - 1;
constexpr BlockKind block_kind(uint64_t word) { return static_cast<BlockKind>(word & 15); }
constexpr uint32_t block_count(uint64_t word) { return static_cast<uint32_t>(word >> 4 & kMaxBlocks); }
constexpr uint16_t block_owner(uint64_t word) { return static_cast<uint16_t>(word >> 32); }

static_assert(sizeof(HeaderLine) == kLineBytes && sizeof(HostLine) == kLineBytes && sizeof(ProcessLine) == kLineBytes);
static_assert(sizeof(DoorbellLine) == kLineBytes && sizeof(CheckLine) == kLineBytes);
static_assert(sizeof(OfferLine) == kLineBytes && sizeof(AcceptLine) == kLineBytes && sizeof(BlockLine) == kLineBytes);

/// The places that follow from a header that was checked.
class Geometry {
 public:
  Geometry() = default;
  explicit Geometry(const HeaderLine& header) : header_(header) {
    const auto round_up = [](uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; };
    territory_bytes_ = (header.bytes - kTerritoriesOffset) / header.hosts / kTerritoryAlignment * kTerritoryAlignment;
    const uint64_t records = header.records * kRecordBytes;
    if (records >= territory_bytes_) return;
    uint64_t blocks = (territory_bytes_ - records) / (header.block_bytes + kLineBytes);
    const auto first = [&] { return round_up(records + blocks * kLineBytes, kPageBytes); };
    while (blocks > 0 && first() + blocks * header.block_bytes > territory_bytes_) --blocks;
    blocks_ = static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
    first_block_ = first();
  }

  uint64_t bytes() const { return header_.bytes; }
  uint16_t hosts() const { return static_cast<uint16_t>(header_.hosts); }
  uint16_t records() const { return static_cast<uint16_t>(header_.records); }
  uint32_t blocks() const { return blocks_; }
  uint64_t block_bytes() const { return header_.block_bytes; }
  uint32_t ring_lines() const { return header_.ring_lines; }
  const HeaderLine& header() const { return header_; }

  uint64_t host_page(uint16_t host) const { return kHostsOffset + host * kPageBytes; }
  uint64_t territory(uint16_t host) const { return kTerritoriesOffset + host * territory_bytes_; }
  uint64_t territory_bytes() const { return territory_bytes_; }
  uint64_t record(uint16_t host, uint16_t record) const { return territory(host) + record * kRecordBytes; }
  uint64_t block_line(uint16_t host, uint32_t block) const {
    return territory(host) + header_.records * kRecordBytes + block * kLineBytes;
  }
  uint64_t block(uint16_t host, uint32_t number) const {
    return territory(host) + first_block_ + number * block_bytes();
  }
  /// Blocks that hold so many bytes.
  uint64_t blocks_for(uint64_t bytes) const { return (bytes + block_bytes() - 1) / block_bytes(); }
  /// True if [offset, offset + bytes) lies in the blocks of the host's territory.
  bool is_in_blocks(uint16_t host, uint64_t offset, uint64_t bytes) const {
    if (host >= hosts() || offset < block(host, 0)) return false;
    const uint64_t all = blocks_ * block_bytes();
    const uint64_t begin = offset - block(host, 0);
    return begin <= all && bytes <= all - begin;
  }
  /// The same for an inbox that the host offers: it begins with a block.
  bool is_inbox(uint16_t host, uint64_t offset, uint32_t lines) const {
    return lines == ring_lines() && is_in_blocks(host, offset, inbox_bytes(lines)) &&
           (offset - block(host, 0)) % block_bytes() == 0;
  }

 private:
  HeaderLine header_;
  uint64_t territory_bytes_ = 0;
  uint64_t first_block_ = 0;  ///< from the beginning of the territory
  uint32_t blocks_ = 0;
};

/// The CRC-32 that belongs into the header.
uint32_t checksum_of(const HeaderLine& header);
/// Checks a copy of the header of a medium of so many bytes. EINVAL: `what` holds no pool, another version of it, or a
/// header that `nupa pool format` does not write.
Result<Geometry> check_header(const HeaderLine& header, uint64_t medium_bytes, const char* what);

}  // namespace nupa::pool
