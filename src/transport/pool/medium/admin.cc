// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/admin.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>

#include "base/boot_id.h"
#include "base/random_seed.h"
#include "base/system_error.h"
#include "transport/pool/medium/block_table.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/free_unused_blocks.h"
#include "transport/pool/medium/host_lock.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

constexpr uint64_t kUsualRingBytes = 256 << 10;
constexpr uint64_t kUsualBlockBytes = 16 << 10;
constexpr uint64_t kMostUsualBlocks = 1 << 16;
constexpr uint64_t kLeastUsualRecords = 4;
constexpr uint64_t kMostUsualRecords = 64;
/// Heartbeats come ten times a second, and on a busy machine later.
constexpr int64_t kLookNs = 2'500'000'000;
constexpr int64_t kLookPauseNs = 50'000'000;

using RecordPlace = std::pair<uint16_t, uint16_t>;  // host, record
using MediumDirectory = Directory<MediumPolicy>;

/// The records in use with their heartbeats.
std::map<RecordPlace, uint64_t> beats_of(MediumDirectory& directory, uint16_t first_host, uint16_t end_host) {
  std::map<RecordPlace, uint64_t> beats;
  for (uint16_t host = first_host; host < end_host; ++host) {
    const uint16_t used = directory.records_used(host);
    for (uint16_t record = 0; record < used; ++record)
      if (directory.instance_of(host, record) != 0) beats[{host, record}] = directory.beat_of(host, record);
  }
  return beats;
}

/// The records whose heartbeats change within a time. Ends early if `is_enough` is satisfied.
template <class IsEnough>
std::vector<RecordPlace> beating(MediumDirectory& directory, uint16_t first_host, uint16_t end_host, int64_t watch_ns,
                                 const PoolClock& clock, IsEnough&& is_enough) {
  std::map<RecordPlace, uint64_t> silent = beats_of(directory, first_host, end_host);
  std::vector<RecordPlace> found;
  const int64_t until = clock.now_ns() + watch_ns;
  while (!silent.empty() && clock.now_ns() < until && !is_enough(found)) {
    clock.sleep_ns(kLookPauseNs);
    std::erase_if(silent, [&](const auto& each) {
      const auto& [place, beat] = each;
      if (directory.beat_of(place.first, place.second) == beat) return false;
      found.push_back(place);
      return true;
    });
  }
  return found;
}

const auto kAny = [](const std::vector<RecordPlace>& found) { return !found.empty(); };
const auto kAll = [](const std::vector<RecordPlace>&) { return false; };

Result<void> make_file(const Spec& spec, uint64_t size) {
  if (spec.kind != MediumKind::kFile) {
    if (size != 0) return fail(EINVAL, "--size: only a medium file: gets a size, and ", spec.medium(), " has its own");
    return {};
  }
  if (size == 0) return {};
  const base::UniqueFd file(::open(spec.name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return base::fail_call(errno, "cannot make the pool file ", spec.name);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return base::fail_call(errno, "cannot stat the pool file ", spec.name);
  if (static_cast<uint64_t>(status.st_size) == size) return {};
  // A pool in it can be in use, so it becomes no shorter here.
  if (static_cast<uint64_t>(status.st_size) > size)
    return fail(EINVAL, "--size: the pool file ", spec.name, " has ", static_cast<uint64_t>(status.st_size),
                " bytes already (remove the file first)");
  if (ftruncate(file.get(), static_cast<off_t>(size)) != 0)
    return base::fail_call(errno, "cannot give the pool file ", spec.name, " ", size, " bytes");
  return {};
}

Result<HeaderLine> header_for(const PoolMemory& memory, const FormatOptions& options) {
  HeaderLine header;
  header.hosts = options.hosts;
  header.bytes = std::min(memory.bytes(), kMostPoolBytes);
  if (header.bytes <= kTerritoriesOffset)
    return fail(EINVAL, memory.spec().medium(), ": ", memory.bytes(), " bytes are too few for a pool");
  const uint64_t territory = (header.bytes - kTerritoriesOffset) / options.hosts;
  header.records = static_cast<uint32_t>(
      std::clamp(std::bit_floor(territory / 16 / kRecordBytes), kLeastUsualRecords, kMostUsualRecords));
  uint64_t block_bytes = kUsualBlockBytes;
  while (territory / block_bytes > kMostUsualBlocks && block_bytes < kMostBlockBytes) block_bytes *= 2;
  header.block_bytes = static_cast<uint32_t>(block_bytes);
  uint64_t ring = options.ring_bytes;
  if (ring == 0) ring = std::clamp(std::bit_floor(territory / 64), kLeastRingLines * kLineBytes, kUsualRingBytes);
  header.ring_lines = static_cast<uint32_t>(std::min<uint64_t>(ring / kLineBytes, UINT32_MAX));
  for (uint64_t at = 0; at < header.uuid.size(); at += sizeof(uint64_t)) {
    const uint64_t random = base::random_seed();
    std::memcpy(header.uuid.data() + at, &random, sizeof random);
  }
  header.formatted_s = static_cast<uint64_t>(::time(nullptr));
  header.checksum = checksum_of(header);
  const auto checked = check_header(header, memory.bytes(), memory.spec().medium().c_str());
  if (!checked)
    return fail(EINVAL, memory.spec().medium(), ": too small for ", options.hosts, " hosts with rings of ", ring,
                " bytes (fewer hosts, or --ring-size)");
  return header;
}

/// EBUSY: a process of any host is alive.
Result<void> check_unused(const PoolMemory& memory, const PoolClock& clock) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return {};
  MediumDirectory directory(policy_of(memory), memory.lines(), *geometry, memory.spec().host);
  const auto in_use = [&](const RecordPlace& place) {
    return fail(EBUSY, memory.spec().medium(), ": the pool is in use by process ",
                directory.process_line(place.first, place.second).value_or(ProcessLine()).pid, " of host ", place.first,
                " (nupa pool status shows it; --force formats it nevertheless)");
  };
  for (const auto& [place, beat] : beats_of(directory, 0, geometry->hosts()))
    if (HostLock(memory.fd(), place.first).is_taken(place.second)) return in_use(place);
  const auto found = beating(directory, 0, geometry->hosts(), kLookNs, clock, kAny);
  if (!found.empty()) return in_use(found.front());
  return {};
}

void zero(MediumPolicy& policy, Line* pool, uint64_t offset, uint64_t bytes) {
  static constexpr std::array<std::byte, kPageBytes> kZeros{};
  for (uint64_t done = 0; done < bytes; done += kZeros.size())
    policy.store(pool + (offset + done) / kLineBytes, kZeros.data(), std::min<uint64_t>(kZeros.size(), bytes - done));
  policy.full_fence();
}

BlockCounts count_blocks(const MediumPolicy& policy, Line* pool, const Geometry& geometry, uint16_t host) {
  MediumDirectory directory(policy, pool, geometry, host);
  BlockTable<MediumPolicy> table(policy, directory.at(geometry.block_line(host, 0)), geometry.blocks());
  BlockCounts counts;
  counts.total = geometry.blocks();
  counts.is_damaged = !table.each([&](uint32_t at, uint32_t count, const BlockLine& line) {
    switch (block_kind(line.word)) {
      case BlockKind::kFree:
        counts.free += count;
        break;
      case BlockKind::kProgram:
        (is_left_behind(directory, line) ? counts.quarantined : counts.program) += count;
        break;
      case BlockKind::kInbox: {
        const uint64_t offset = geometry.block(host, at);
        const bool is_quarantined = !directory.is_offered(line, offset);
        (is_quarantined ? counts.quarantined : counts.inbox) += count;
        break;
      }
    }
    return true;
  });
  return counts;
}

}  // namespace

Result<HeaderLine> format_pool(const Spec& spec, const FormatOptions& options, const PoolClock& clock) {
  if (options.hosts < 1 || options.hosts > kMaxHosts)
    return fail(EINVAL, "--hosts: expected a number from 1 to ", kMaxHosts);
  if (const uint64_t ring = options.ring_bytes;
      ring != 0 && (!std::has_single_bit(ring) || ring < kLeastRingLines * kLineBytes ||
                    ring > uint64_t{kMostRingLines} * kLineBytes))
    return fail(EINVAL, "--ring-size: expected a power of two from ", kLeastRingLines * kLineBytes, " to ",
                uint64_t{kMostRingLines} * kLineBytes);
  if (auto made = make_file(spec, options.size); !made) return tl::unexpected(made.error());
  // The file itself: what the hosts' copies hold is lost.
  Spec direct = spec;
  if (spec.kind == MediumKind::kFile) direct.coherence = Coherence::kFull;
  const auto memory = PoolMemory::open(direct);
  if (!memory) return tl::unexpected(memory.error());
  if (!options.force)
    if (auto unused = check_unused(**memory, clock); !unused) return tl::unexpected(unused.error());
  const auto header = header_for(**memory, options);
  if (!header) return tl::unexpected(header.error());
  const Geometry geometry(*header);
  MediumPolicy policy = policy_of(**memory);
  Line* const pool = (*memory)->lines();
  clear_line(policy, pool);
  zero(policy, pool, kHostsOffset, geometry.hosts() * kPageBytes);
  for (uint16_t host = 0; host < geometry.hosts(); ++host)
    zero(policy, pool, geometry.territory(host), geometry.block(host, 0) - geometry.territory(host));
  put_line(policy, pool, *header);
  if (spec.kind == MediumKind::kFile) TornMemory::remove_copies(spec.name, kMaxHosts);
  return header;
}

Result<PoolStatus> look_at_pool(const PoolMemory& memory, int64_t watch_ns, const PoolClock& clock) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return tl::unexpected(geometry.error());
  MediumPolicy policy = policy_of(memory);
  PoolStatus status;
  status.header = geometry->header();
  MediumDirectory directory(policy, memory.lines(), *geometry, memory.spec().host);
  const auto alive = beating(directory, 0, geometry->hosts(), watch_ns, clock, kAll);
  for (uint16_t host = 0; host < geometry->hosts(); ++host) {
    HostStatus& found = status.hosts.emplace_back();
    found.host = host;
    const auto line = directory.host_line(host);
    found.is_known = line.has_value();
    found.line = line.value_or(HostLine());
    found.is_alive =
        std::any_of(alive.begin(), alive.end(), [&](const RecordPlace& each) { return each.first == host; });
    const uint16_t used = directory.records_used(host);
    for (uint16_t record = 0; record < used; ++record) {
      const auto process = directory.process_line(host, record);
      if (!process) continue;
      ProcessStatus& each = found.processes.emplace_back();
      each.record = record;
      each.line = *process;
      each.is_alive = std::find(alive.begin(), alive.end(), RecordPlace(host, record)) != alive.end();
      each.description = directory.describe({host, record, process->instance}).value_or(Description());
      each.channels = directory.channels_of(host, record);
      each.doorbell = directory.doorbell_of({host, record, process->instance}).kind;
    }
    found.check = copy_line<CheckLine>(policy, directory.page(host, kLastCheckLine));
    found.blocks = count_blocks(policy, memory.lines(), *geometry, host);
  }
  return status;
}

Result<Cleaned> clean_pool(const PoolMemory& memory, const PoolClock& clock) {
  const auto geometry = read_geometry(memory);
  if (!geometry) return tl::unexpected(geometry.error());
  const uint16_t host = memory.spec().host;
  HostLock lock(memory.fd(), host);
  HeldHostLock held(lock);
  if (!held.is_held()) return fail(held.error());
  const MediumPolicy policy = policy_of(memory);
  MediumDirectory directory(policy, memory.lines(), *geometry, host);
  BlockTable<MediumPolicy> table(policy, directory.at(geometry->block_line(host, 0)), geometry->blocks());
  const auto line = directory.host_line(host);
  const bool are_locks_shared = line && line->boot_id == base::boot_id() && line->file_device == memory.file_device() &&
                                line->file_inode == memory.file_inode();
  std::vector<RecordPlace> alive;
  if (!are_locks_shared) {
    alive = beating(directory, host, static_cast<uint16_t>(host + 1), kLookNs, clock, kAll);
    if (!alive.empty() && line && line->boot_id != base::boot_id())
      return fail(EADDRINUSE, "host ", host, " of the pool ", memory.spec().medium(),
                  " is in use by another machine: its heartbeat changes");
  }
  Cleaned cleaned;
  const BlockCounts before = count_blocks(policy, memory.lines(), *geometry, host);
  for (const auto& [place, beat] : beats_of(directory, host, static_cast<uint16_t>(host + 1))) {
    if (lock.is_taken(place.second) || std::find(alive.begin(), alive.end(), place) != alive.end()) continue;
    if (const auto process = directory.process_line(host, place.second)) cleaned.processes.push_back(*process);
    directory.end_process(place.second);
  }
  free_unused_blocks(directory, table, lock);
  cleaned.left = count_blocks(policy, memory.lines(), *geometry, host);
  cleaned.blocks = cleaned.left.free - std::min(cleaned.left.free, before.free);
  return cleaned;
}

std::string uuid_text(const Uuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

}  // namespace nupa::pool
