// SPDX-License-Identifier: Apache-2.0
#include "sysfs/tree.h"

#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/link_rate.h"
#include "base/system_error.h"

namespace nupa::sysfs {
namespace {

namespace files = std::filesystem;

constexpr const char* kVirtual = "/sys/devices/virtual/nupa/";
/// From files of a device's folder up to /sys.
constexpr const char* kUpToSys = "../../../../../../";
constexpr int kUverbsAbi = 6;        ///< IB_USER_VERBS_ABI_VERSION
constexpr int kUverbsDeviceAbi = 1;  ///< of a device without its own driver, as rdma_rxe has it
constexpr int kRdmaCmAbi = 4;        ///< RDMA_USER_CM_ABI_VERSION
constexpr int kUverbsMajor = 231;
constexpr int kUverbsMinor = 192;

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char room[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(room, sizeof room, format, values);
  va_end(values);
  return room;
}

/// Groups of four digits with all zeros, as the kernel prints GIDs and GUIDs.
std::string groups_of(const uint8_t* bytes, size_t count) {
  std::string groups;
  for (size_t i = 0; i + 1 < count; i += 2)
    groups += text("%s%02x%02x", i == 0 ? "" : ":", unsigned{bytes[i]}, unsigned{bytes[i + 1]});
  return groups + "\n";
}
std::string gid_text(const Gid& gid) { return groups_of(gid.raw.data(), gid.raw.size()); }
std::string guid_text(uint64_t guid) {
  uint8_t bytes[sizeof guid];
  std::memcpy(bytes, &guid, sizeof guid);
  return groups_of(bytes, sizeof bytes);
}

const char* name_of(PortState state) {
  switch (state) {
    case PortState::kActive:
      return "4: ACTIVE\n";
    default:
      return "1: DOWN\n";
  }
}

const char* name_of(LinkSpeed speed) {
  switch (speed) {
    case LinkSpeed::kSdr:
      return "";
    case LinkSpeed::kDdr:
      return " DDR";
    case LinkSpeed::kQdr:
      return " QDR";
    case LinkSpeed::kFdr10:
      return " FDR10";
    case LinkSpeed::kFdr:
      return " FDR";
    case LinkSpeed::kEdr:
      return " EDR";
    case LinkSpeed::kHdr:
      return " HDR";
    case LinkSpeed::kNdr:
      return " NDR";
  }
  return "";
}

std::string rate_text(const PortAttr& port) {
  const uint32_t lanes = base::lanes_of(port.active_width);
  const uint32_t tenths = base::lane_speed_of(port.active_speed) * lanes;
  return text("%u%s Gb/sec (%uX%s)\n", tenths / 10, tenths % 10 == 0 ? "" : ".5", lanes, name_of(port.active_speed));
}

/// The interfaces of a device: those that it was given, or those of its addresses. The loopback interface only if there
/// is no other: programs take the first one.
std::vector<std::string> interfaces_of(const core::DeviceEntry& device) {
  if (!device.interfaces.empty()) return device.interfaces;
  std::vector<std::string> names;
  for (const GidEntry& gid : device.gids) {
    char name[IF_NAMESIZE];
    if (gid.interface_index == 0 || if_indextoname(gid.interface_index, name) == nullptr) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  if (names.size() > 1) std::erase(names, "lo");
  return names;
}

/// The first word of a file; `otherwise` if it cannot be read.
std::string word_of(const std::string& path, const std::string& otherwise) {
  std::ifstream file(path);
  std::string word;
  return file >> word ? word : otherwise;
}

class Tree {
 public:
  Tree(const Attributes& attributes, const std::vector<shm::PortSums>& counts)
      : attributes_(attributes), counts_(counts) {}

  void add_device(const core::DeviceEntry& device) {
    const std::string parent = kVirtual + device.name;
    const std::string verbs = parent + "/infiniband/" + device.name;
    const std::string uverbs_name = "uverbs" + std::to_string(device.index);
    const std::string uverbs = parent + "/infiniband_verbs/" + uverbs_name;
    add_parent(parent, device);
    link("/sys/class/infiniband/" + device.name, "../.." + verbs.substr(std::strlen("/sys")));
    add_verbs(verbs, device);
    link("/sys/class/infiniband_verbs/" + uverbs_name, "../.." + uverbs.substr(std::strlen("/sys")));
    file(uverbs + "/ibdev", device.name + "\n");
    file(uverbs + "/abi_version", text("%d\n", kUverbsDeviceAbi));
    file(uverbs + "/dev", text("%d:%u\n", kUverbsMajor, kUverbsMinor + device.index));
    link(uverbs + "/device", "../../../" + device.name);
    link(uverbs + "/subsystem", std::string(kUpToSys) + "class/infiniband_verbs");
    // Programs only look whether they may read and write it.
    link("/dev/infiniband/" + uverbs_name, "/dev/null");
  }
  void add_common() {
    file("/sys/class/infiniband_verbs/abi_version", text("%d\n", kUverbsAbi));
    file("/sys/class/misc/rdma_cm/abi_version", text("%d\n", kRdmaCmAbi));
    link("/dev/infiniband/rdma_cm", "/dev/null");
  }
  std::vector<Entry> entries() && { return std::move(entries_); }

 private:
  void file(const std::string& path, const std::string& content, Kind kind = Kind::kFile) {
    entries_.push_back({path, kind, content});
  }
  void link(const std::string& path, const std::string& target) { entries_.push_back({path, Kind::kLink, target}); }

  /// The device that the adapter would be on a bus.
  void add_parent(const std::string& at, const core::DeviceEntry& device) {
    const std::vector<std::string> interfaces = interfaces_of(device);
    const std::string first = interfaces.empty() ? "" : "/sys/class/net/" + interfaces[0] + "/device/";
    file(at + "/numa_node", word_of(first + "numa_node", "-1") + "\n");
    file(at + "/local_cpulist",
         word_of(first + "local_cpulist", word_of("/sys/devices/system/cpu/online", "0")) + "\n");
    file(at + "/vendor", text("0x%04x\n", attributes_.device.vendor_id));
    file(at + "/device", text("0x%04x\n", attributes_.device.vendor_part_id));
    file(at + "/uevent", "");
    for (const std::string& interface : interfaces) link(at + "/net/" + interface, "/sys/class/net/" + interface);
  }

  void add_verbs(const std::string& at, const core::DeviceEntry& device) {
    link(at + "/device", "../../../" + device.name);
    link(at + "/subsystem", std::string(kUpToSys) + "class/infiniband");
    file(at + "/uevent", "NAME=" + device.name + "\n");
    file(at + "/node_type", "1: CA\n");
    file(at + "/node_guid", guid_text(device.node_guid));
    file(at + "/sys_image_guid", guid_text(device.node_guid));
    file(at + "/node_desc", device.name + "\n");
    file(at + "/fw_ver", std::string(attributes_.device.fw_ver) + "\n");
    file(at + "/hw_rev", text("0x%x\n", attributes_.device.hw_ver));
    file(at + "/hca_type", "NUPA\n");
    file(at + "/board_id", "NUPA\n");
    const std::string port_folder = at + "/ports/1";
    const PortAttr& port = attributes_.port;
    file(port_folder + "/state", name_of(port.state));
    file(port_folder + "/phys_state", port.phys_state == PhysState::kLinkUp ? "5: LinkUp\n" : "3: Disabled\n");
    file(port_folder + "/rate", rate_text(port));
    file(port_folder + "/link_layer", "Ethernet\n");
    file(port_folder + "/lid", text("0x%x\n", port.lid));
    file(port_folder + "/lid_mask_count", "0\n");
    file(port_folder + "/sm_lid", text("0x%x\n", port.sm_lid));
    file(port_folder + "/sm_sl", "0\n");
    file(port_folder + "/cap_mask", text("0x%08x\n", port.port_cap_flags));
    file(port_folder + "/pkeys/0", "0xffff\n");
    for (const GidEntry& gid : device.gids) add_gid(port_folder, gid);
    add_counters(port_folder, device.index < counts_.size() ? counts_[device.index] : shm::PortSums{});
  }

  void add_counters(const std::string& port, shm::PortSums sums) {
    using shm::PortCount;
    const auto add = [&](const std::string& folder, const char* name, uint64_t value) {
      file(port + folder + name, std::to_string(value) + "\n", Kind::kCounter);
    };
    const auto standard = [&](const char* name, uint64_t value) { add("/counters/", name, value); };
    const uint64_t sent = at(sums, PortCount::kXmitPackets);
    const uint64_t received = at(sums, PortCount::kRcvPackets);
    const uint64_t sent_groups = at(sums, PortCount::kMulticastXmit);
    const uint64_t received_groups = at(sums, PortCount::kMulticastRcv);
    // IBTA 16.1.3.5: in units of four octets.
    standard("port_xmit_data", at(sums, PortCount::kXmitBytes) / 4);
    standard("port_rcv_data", at(sums, PortCount::kRcvBytes) / 4);
    standard("port_xmit_packets", sent);
    standard("port_rcv_packets", received);
    standard("multicast_xmit_packets", sent_groups);
    standard("multicast_rcv_packets", received_groups);
    standard("unicast_xmit_packets", sent - std::min(sent, sent_groups));
    standard("unicast_rcv_packets", received - std::min(received, received_groups));
    standard("port_rcv_errors", at(sums, PortCount::kRcvErrors));
    // Faults of a physical link, which there is not.
    for (const char* name :
         {"symbol_error", "link_error_recovery", "link_downed", "port_rcv_remote_physical_errors",
          "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
          "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"})
      standard(name, 0);
    const auto further = [&](const char* name, PortCount count) { add("/hw_counters/", name, at(sums, count)); };
    further("out_of_sequence", PortCount::kOutOfSequence);
    further("packet_seq_err", PortCount::kSequenceNaks);
    further("local_ack_timeout_err", PortCount::kAckTimeouts);
    further("duplicate_request", PortCount::kDuplicates);
    further("rnr_nak_retry_err", PortCount::kRnrNaks);
    further("out_of_buffer", PortCount::kOutOfBuffer);
    further("req_cqe_error", PortCount::kRequestErrors);
    further("req_cqe_flush_error", PortCount::kFlushedRequests);
    further("req_remote_access_errors", PortCount::kRemoteAccessErrors);
    further("req_remote_invalid_request", PortCount::kRemoteInvalid);
    further("req_transport_retries_exceeded", PortCount::kRetriesExceeded);
    further("req_rnr_retries_exceeded", PortCount::kRnrExceeded);
    file(port + "/hw_counters/lifespan", "0\n");  // ms for which the kernel would keep a value
  }

  void add_gid(const std::string& port, const GidEntry& gid) {
    const std::string number = std::to_string(gid.index);
    file(port + "/gids/" + number, gid_text(gid.gid), Kind::kAddress);
    file(port + "/gid_attrs/types/" + number, "RoCE v2\n", Kind::kAddress);
    char name[IF_NAMESIZE];
    if (gid.interface_index != 0 && if_indextoname(gid.interface_index, name) != nullptr)
      file(port + "/gid_attrs/ndevs/" + number, std::string(name) + "\n", Kind::kAddress);
  }

  const Attributes& attributes_;
  const std::vector<shm::PortSums>& counts_;
  std::vector<Entry> entries_;
};

/// FNV-1a of the entries, without the counters' values.
uint64_t hash_of(const std::vector<Entry>& entries) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](const std::string& part) {
    for (const char byte : part) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;  // between parts
  };
  for (const Entry& entry : entries) {
    add(entry.path);
    add(entry.kind == Kind::kLink ? "link" : "file");
    if (entry.kind != Kind::kCounter) add(entry.content);
  }
  return hash;
}

Result<void> write_file(const std::string& path, const std::string& content) {
  errno = 0;
  std::ofstream file(path);
  file << content;
  file.close();
  if (!file) return base::fail_call(errno == 0 ? EIO : errno, "cannot write ", path);
  return {};
}

Result<void> write_entry(const std::string& folder, const Entry& entry) {
  const std::string path = folder + entry.path;
  std::error_code error;
  files::create_directories(files::path(path).parent_path(), error);
  if (!error && entry.kind == Kind::kLink) files::create_symlink(entry.content, path, error);
  if (error) return base::fail_call(error.value(), "cannot make ", path);
  if (entry.kind == Kind::kLink) return {};
  return write_file(path, entry.content);
}

/// Removes the files of addresses that a port does not have any more.
void remove_addresses(const std::string& tree, const std::set<std::string>& known) {
  std::set<std::string> folders;
  for (const std::string& path : known) folders.insert(path.substr(0, path.rfind('/')));
  std::error_code error;
  for (const std::string& folder : folders)
    for (const files::directory_entry& file : files::directory_iterator(tree + folder, error))
      if (!known.contains(folder + "/" + file.path().filename().string())) files::remove(file.path(), error);
}

}  // namespace

std::vector<Entry> describe(const std::vector<core::DeviceEntry>& devices, const Attributes& attributes,
                            const std::vector<shm::PortSums>& counts) {
  Tree tree(attributes, counts);
  tree.add_common();
  for (const core::DeviceEntry& device : devices) tree.add_device(device);
  return std::move(tree).entries();
}

Result<std::string> publish(const runtime::Directory& directory, const std::vector<Entry>& entries) {
  const std::string folder = directory.path() + "/" + runtime::Directory::name_of_tree(hash_of(entries));
  std::error_code error;
  if (files::is_directory(folder, error)) return folder;
  // A whole tree gets its name at once, so no process sees a part of it.
  const std::string unfinished = folder + text(".%d", getpid());
  Result<void> written;
  for (const Entry& entry : entries)
    if (written = write_entry(unfinished, entry); !written) break;
  if (written) {
    files::rename(unfinished, folder, error);
    if (error && !files::is_directory(folder)) written = base::fail_call(error.value(), "cannot rename ", unfinished);
  }
  files::remove_all(unfinished, error);
  if (!written) return tl::unexpected(written.error());
  return folder;
}

bool may_change(std::string_view path) {
  return path.find("/counters") != path.npos || path.find("/hw_counters") != path.npos ||
         path.find("/gids") != path.npos || path.find("/gid_attrs") != path.npos;
}

Result<void> refresh(const std::string& tree, const std::vector<Entry>& entries) {
  // In the tree, so that it can be renamed, and not in a folder that programs list.
  const std::string unfinished = tree + "/unfinished";
  std::set<std::string> addresses;
  for (const Entry& entry : entries) {
    if (entry.kind != Kind::kCounter && entry.kind != Kind::kAddress) continue;
    if (entry.kind == Kind::kAddress) addresses.insert(entry.path);
    const std::string path = tree + entry.path;
    std::ifstream file(path);
    const std::string now{std::istreambuf_iterator<char>(file), {}};
    if (file && now == entry.content) continue;
    if (auto written = write_file(unfinished, entry.content); !written) return written;
    std::error_code error;
    files::create_directories(files::path(path).parent_path(), error);
    if (!error) files::rename(unfinished, path, error);
    if (error) return base::fail_call(error.value(), "cannot rename ", unfinished);
  }
  remove_addresses(tree, addresses);
  return {};
}

}  // namespace nupa::sysfs
