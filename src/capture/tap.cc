// SPDX-License-Identifier: Apache-2.0
#include "capture/tap.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/gid.h"
#include "base/memory_fault.h"
#include "base/racing_copy.h"
#include "base/shared_file.h"
#include "base/system_error.h"
#include "capture/classes.h"
#include "progress/lifecycle.h"

namespace nupa::capture {
namespace {

/// The packed form of a transport's name: at most eight characters, the first in the lowest byte.
uint64_t packed(std::string_view name) {
  uint64_t word = 0;
  std::memcpy(&word, name.data(), std::min(name.size(), sizeof word));
  return word;
}

/// The attached capture. `users_` counts attach() itself and each thread that writes; at 0 nobody reads the other
/// members, and attach() may set them.
class Tap final : private progress::ForkParticipant {
 public:
  Result<void> attach(base::UniqueFd file, std::string_view program, const std::vector<DeviceName>& devices);
  void detach() {
    if (!is_attached_) return;
    is_attached_ = false;
    g_number.store(0, std::memory_order_relaxed);
    leave();
  }
  /// Returns false if no capture is attached. After true leave() follows.
  bool enter() {
    uint32_t users = users_.load(std::memory_order_relaxed);
    do
      if (users == 0) return false;
    while (!users_.compare_exchange_weak(users, users + 1, std::memory_order_acquire, std::memory_order_relaxed));
    return true;
  }
  void leave() {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) unmap();
  }
  void record(const Packet& packet, const base::Piece* parts, uint32_t part_count);

 private:
  struct Device {
    std::vector<Gid> gids;
    bool is_wanted = true;
  };

  // A child has no place in the capture: the mapping is blank there.
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override {
    g_number.store(0, std::memory_order_relaxed);
    users_.store(0, std::memory_order_relaxed);
    is_attached_ = false;
    mapping_ = nullptr;
    return true;
  }

  void unmap();
  void take_filters();
  uint32_t device_of(const Packet& packet) const;
  bool passes(const Packet& packet, uint32_t device, const std::byte* headers, uint64_t transport) const;
  /// The transport's place in the header; kMostTransports: there is none left.
  uint32_t place_of(uint64_t transport) const;

  std::atomic<uint32_t> users_{0};
  void* mapping_ = nullptr;
  Ring ring_;
  Filters filters_;
  std::vector<Device> devices_;
  uint32_t transport_count_ = 0;
  // Used by the thread of attach().
  bool is_attached_ = false;
  bool has_joined_ = false;
  uint32_t attached_ = 0;  ///< captures so far
};

/// Never destroyed: threads of the program may post while the process ends.
Tap& tap() {
  static Tap& made = *new Tap;
  return made;
}

Result<void> Tap::attach(base::UniqueFd file, std::string_view program, const std::vector<DeviceName>& devices) {
  if (is_attached_ || users_.load(std::memory_order_acquire) != 0)
    return fail(EBUSY, "another capture records the packets of this process");
  struct stat status;
  if (fstat(file.get(), &status) != 0) return base::fail_call(errno, "cannot stat the ring of a capture");
  const auto bytes = static_cast<uint64_t>(status.st_size);
  const bool fits = bytes > kRecordsOffset && Ring::is_valid(bytes - kRecordsOffset);
  if (!base::cannot_shrink(file.get()) || !fits) return fail(EPROTO, "not the ring of a capture");
  if (!has_joined_) {
    if (const int error = progress::join_forks(progress::ForkStage::kDescriptors, this); error != 0)
      return fail(error, "no memory for fork handlers");
    has_joined_ = true;
  }
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return base::fail_call(errno, "cannot map the ring of a capture");
  ring_ = Ring(at, static_cast<uint32_t>(bytes - kRecordsOffset));
  RingHeader& header = ring_.header();
  if (header.magic != kRingMagic || header.version != kRingVersion) {
    munmap(at, bytes);
    return fail(EPROTO, "the ring of a capture of another version");
  }
  madvise(at, bytes, MADV_DONTDUMP);
  progress::blank_in_children(at, bytes);
  mapping_ = at;
  filters_ = header.filters;
  for (auto& name : filters_.devices) name[kNameBytes - 1] = '\0';
  const auto put_name = [](auto& to, std::string_view name) {
    std::memcpy(to, name.data(), std::min(name.size(), sizeof to - 1));
  };
  put_name(header.program, program);
  header.device_count = static_cast<uint32_t>(std::min<size_t>(devices.size(), kMostDevices));
  devices_.clear();
  for (uint32_t i = 0; i < header.device_count; ++i) {
    put_name(header.devices[i], devices[i].name);
    const auto names_it = [&](const char(&wanted)[kNameBytes]) { return devices[i].name == wanted; };
    const auto& wanted = filters_.devices;
    devices_.push_back({devices[i].gids, wanted[0][0] == '\0' || std::any_of(wanted.begin(), wanted.end(), names_it)});
  }
  filters_.qp_count = std::min(filters_.qp_count, kMostQueuePairs);
  is_attached_ = true;
  users_.store(1, std::memory_order_release);
  if (++attached_ == 0) ++attached_;
  g_number.store(attached_, std::memory_order_relaxed);
  return {};
}

void Tap::unmap() {
  progress::forget_mapping_for_children(mapping_);
  munmap(mapping_, Ring::file_bytes(ring_.capacity()));
  mapping_ = nullptr;
}

uint32_t Tap::device_of(const Packet& packet) const {
  if (packet.device != Packet::kUnknownDevice) return packet.device < kMostDevices ? packet.device : 0;
  const Gid& local = packet.direction == Direction::kOutbound ? packet.datagram.source : packet.datagram.destination;
  for (uint32_t i = 0; i < devices_.size(); ++i)
    if (std::find(devices_[i].gids.begin(), devices_[i].gids.end(), local) != devices_[i].gids.end()) return i;
  return 0;
}

bool Tap::passes(const Packet& packet, uint32_t device, const std::byte* headers, uint64_t transport) const {
  const PacketNames names = names_of(headers);
  if (filters_.classes != 0 && (filters_.classes & names.packet_class) == 0) return false;
  if (filters_.directions != 0 && (filters_.directions & 1u << static_cast<uint32_t>(packet.direction)) == 0)
    return false;
  const auto has_qp = [&](uint32_t qp) { return qp == packet.qp || qp == names.dest_qpn; };
  if (filters_.qp_count != 0 && std::none_of(filters_.qps.begin(), filters_.qps.begin() + filters_.qp_count, has_qp))
    return false;
  const auto& wanted = filters_.transports;
  if (wanted[0] != 0 && std::find(wanted.begin(), wanted.end(), transport) == wanted.end()) return false;
  return device >= devices_.size() ? filters_.devices[0][0] == '\0' : devices_[device].is_wanted;
}

uint32_t Tap::place_of(uint64_t transport) const {
  uint32_t place = 0;
  for (; place < kMostTransports; ++place) {
    uint64_t found = 0;
    std::atomic<uint64_t>& name = ring_.header().transports[place];
    if (name.load(std::memory_order_relaxed) == transport || name.compare_exchange_strong(found, transport) ||
        found == transport)
      break;
  }
  return place;
}

/// Copies as much of the parts as `room` has. Returns the end.
std::byte* copy_parts(const base::Piece* parts, uint32_t count, std::byte* to, uint64_t room) {
  for (uint32_t i = 0; i < count && room > 0; ++i) {
    const uint64_t length = std::min(parts[i].length, room);
    const std::byte* const from = parts[i].data;
    // A null region reads as zeros; so does memory that the program has unmapped. The ring has zeros there.
    if (from != nullptr) base::try_access(from, length, [&] { base::copy_racing(to, from, length); });
    to += length;
    room -= length;
  }
  return to;
}

void Tap::record(const Packet& packet, const base::Piece* parts, uint32_t part_count) {
  const uint64_t transport = packed(packet.transport);
  const uint32_t device = device_of(packet);
  if (part_count == 0 || parts[0].length < kNamesBytes || !passes(packet, device, parts[0].data, transport)) return;
  const uint32_t place = place_of(transport);
  if (place >= kMostTransports) return;
  uint64_t payload = 0;
  for (uint32_t i = 0; i < part_count; ++i) payload += parts[i].length;
  LinkHeaders link;
  const uint32_t link_bytes = write_link_headers(packet.datagram, static_cast<uint32_t>(payload), &link);
  const auto length = static_cast<uint32_t>(link_bytes + payload);
  const uint32_t captured = filters_.snaplen == 0 ? length : std::min(length, filters_.snaplen);
  uint64_t position = 0;
  RecordHeader* const record = ring_.take(captured, &position);
  if (record == nullptr) {
    ring_.header().dropped[device][place].fetch_add(1, std::memory_order_relaxed);
    return;
  }
  record->captured = captured;
  record->length = length;
  record->qp = packet.qp;
  record->time_ns = packet.time_ns != 0 ? packet.time_ns : base::now_ns();
  record->direction = packet.direction;
  record->device = static_cast<uint8_t>(device);
  record->transport = static_cast<uint8_t>(place);
  record->flags = packet.flags;
  record->udp_port = packet.datagram.destination_port;
  auto* const to = reinterpret_cast<std::byte*>(record + 1);
  const uint32_t link_kept = std::min(link_bytes, captured);
  std::memcpy(to, link.data(), link_kept);
  copy_parts(parts, part_count, to + link_kept, captured - link_kept);
  Ring::commit(*record, position);
}

}  // namespace

Result<void> attach(base::UniqueFd ring, std::string_view program, const std::vector<DeviceName>& devices) {
  return tap().attach(std::move(ring), program, devices);
}

void detach() { tap().detach(); }

void record(const Packet& packet, const base::Piece* parts, uint32_t part_count) {
  Tap& attached = tap();
  if (!attached.enter()) return;
  attached.record(packet, parts, part_count);
  attached.leave();
}

}  // namespace nupa::capture
