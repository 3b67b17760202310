// SPDX-License-Identifier: Apache-2.0
/// The files by which programs look for an adapter.
#include <gtest/gtest.h>
#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "sysfs/tree.h"

namespace nupa::sysfs {
namespace {

Gid gid_of(std::initializer_list<uint8_t> head, uint8_t last) {
  Gid gid;
  std::copy(head.begin(), head.end(), gid.raw.begin());
  gid.raw[15] = last;
  return gid;
}

class SysfsTree : public ::testing::Test {
 protected:
  SysfsTree() {
    char name[] = "/tmp/nupa-sysfs-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    setenv("NUPA_RUNTIME_DIR", name, 1);
    attributes_.device.vendor_id = 0x1234;
    attributes_.port.state = PortState::kActive;
    attributes_.port.phys_state = PhysState::kLinkUp;
    attributes_.port.active_width = LinkWidth::k4x;
    attributes_.port.active_speed = LinkSpeed::kHdr;
    attributes_.port.lid = 1;
    attributes_.port.port_cap_flags = 0x4010000;
  }
  ~SysfsTree() override {
    unsetenv("NUPA_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }
  core::DeviceEntry device(uint32_t index) {
    core::DeviceEntry entry;
    entry.index = index;
    entry.name = "nupa" + std::to_string(index);
    entry.interfaces = {"lo"};
    entry.gids = {{.gid = gid_of({0xfe, 0x80}, 1), .index = 0, .interface_index = if_nametoindex("lo")},
                  {.gid = gid_of({0xfd}, 2), .index = 1}};
    const uint8_t guid[8] = {2, 0, 0, 0xff, 0xfe, 0, 0, 7};
    std::memcpy(&entry.node_guid, guid, sizeof guid);
    return entry;
  }
  /// Publishes the files of some devices.
  void publish_devices(uint32_t number) {
    std::vector<core::DeviceEntry> devices;
    for (uint32_t index = 0; index < number; ++index) devices.push_back(device(index));
    const auto directory = runtime::Directory::open();
    ASSERT_TRUE(directory) << directory.error().what();
    const auto published = publish(**directory, describe(devices, attributes_, counts_));
    ASSERT_TRUE(published) << published.error().what();
    tree_ = *published;
  }
  std::string text_of(const std::string& path) const {
    std::ifstream file(tree_ + path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  Attributes attributes_{};
  std::vector<shm::PortSums> counts_;
  std::string folder_;
  std::string tree_;
};

TEST_F(SysfsTree, PortOfADevice_HasTheFilesOfAnAdapter) {
  publish_devices(1);
  const std::string port = "/sys/class/infiniband/nupa0/ports/1/";
  EXPECT_EQ(text_of(port + "state"), "4: ACTIVE\n");
  EXPECT_EQ(text_of(port + "phys_state"), "5: LinkUp\n");
  EXPECT_EQ(text_of(port + "rate"), "200 Gb/sec (4X HDR)\n");
  EXPECT_EQ(text_of(port + "link_layer"), "Ethernet\n");
  EXPECT_EQ(text_of(port + "lid"), "0x1\n");
  EXPECT_EQ(text_of(port + "cap_mask"), "0x04010000\n");
  EXPECT_EQ(text_of(port + "pkeys/0"), "0xffff\n");
  EXPECT_EQ(text_of(port + "gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
  EXPECT_EQ(text_of(port + "gids/1"), "fd00:0000:0000:0000:0000:0000:0000:0002\n");
  EXPECT_EQ(text_of(port + "gid_attrs/types/1"), "RoCE v2\n");
  EXPECT_EQ(text_of(port + "gid_attrs/ndevs/0"), "lo\n");
  EXPECT_FALSE(std::filesystem::exists(tree_ + port + "gid_attrs/ndevs/1")) << "it has no interface";
}

TEST_F(SysfsTree, PortThatIsDown_SaysSo) {
  attributes_.port.state = PortState::kDown;
  attributes_.port.phys_state = PhysState::kDisabled;
  publish_devices(1);
  EXPECT_EQ(text_of("/sys/class/infiniband/nupa0/ports/1/state"), "1: DOWN\n");
  EXPECT_EQ(text_of("/sys/class/infiniband/nupa0/ports/1/phys_state"), "3: Disabled\n");
}

TEST_F(SysfsTree, Rate_OfHalfGigabits) {
  attributes_.port.active_width = LinkWidth::k1x;
  attributes_.port.active_speed = LinkSpeed::kSdr;
  publish_devices(1);
  EXPECT_EQ(text_of("/sys/class/infiniband/nupa0/ports/1/rate"), "2.5 Gb/sec (1X)\n");
}

TEST_F(SysfsTree, Device_LeadsToItsFolderItsInterfaceAndItsCommands) {
  publish_devices(2);
  const std::string verbs = "/sys/class/infiniband/nupa1";
  EXPECT_EQ(text_of(verbs + "/node_guid"), "0200:00ff:fe00:0007\n");
  EXPECT_EQ(text_of(verbs + "/node_type"), "1: CA\n");
  EXPECT_EQ(text_of(verbs + "/device/vendor"), "0x1234\n");
  EXPECT_FALSE(text_of(verbs + "/device/numa_node").empty());
  EXPECT_EQ(std::filesystem::read_symlink(tree_ + verbs + "/device/net/lo"), "/sys/class/net/lo");
  EXPECT_EQ(std::filesystem::canonical(tree_ + verbs + "/../.."), tree_ + "/sys/devices/virtual/nupa/nupa1");
  EXPECT_EQ(text_of("/sys/class/infiniband_verbs/uverbs1/ibdev"), "nupa1\n");
  EXPECT_EQ(text_of("/sys/class/infiniband_verbs/uverbs1/device/device"), text_of(verbs + "/device/device"));
  EXPECT_EQ(text_of("/sys/class/infiniband_verbs/abi_version"), "6\n");
  EXPECT_TRUE(std::filesystem::is_directory(tree_ + verbs + "/subsystem/nupa0"));
  EXPECT_TRUE(std::filesystem::is_character_file(tree_ + "/dev/infiniband/uverbs1"));
  EXPECT_TRUE(std::filesystem::is_character_file(tree_ + "/dev/infiniband/rdma_cm"));
}

TEST_F(SysfsTree, Publish_OfTheSame_IsTheSameFolder) {
  publish_devices(1);
  const std::string first = tree_;
  publish_devices(1);
  EXPECT_EQ(tree_, first);
  publish_devices(2);
  EXPECT_NE(tree_, first);
  attributes_.device.vendor_id = 0x4321;
  publish_devices(1);
  EXPECT_NE(tree_, first) << "another text";
  const auto directory = runtime::Directory::open();
  EXPECT_EQ((*directory)->shared().size(), 3u) << "nothing unfinished is left";
}

TEST_F(SysfsTree, Publish_ThatFails_LeavesNothing) {
  const auto directory = runtime::Directory::open();
  ASSERT_TRUE(directory);
  const auto published = publish(**directory, {{"/file", Kind::kFile, "text"}, {"/file/inside", Kind::kFile, ""}});
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().code(), ENOTDIR) << published.error().what();
  EXPECT_NE(std::string(published.error().what()).find(folder_), std::string::npos) << "it names the path";
  EXPECT_TRUE((*directory)->shared().empty());
}

uint64_t& count(std::vector<shm::PortSums>& counts, shm::PortCount kind) { return at(counts[0], kind); }

TEST_F(SysfsTree, Counters_HaveTheNamesAndUnitsOfTheKernel) {
  counts_.resize(1);
  for (size_t i = 0; i < shm::kPortCounts; ++i) counts_[0][i] = 1000 + i;
  count(counts_, shm::PortCount::kXmitBytes) = 4096;
  count(counts_, shm::PortCount::kMulticastXmit) = 1;
  publish_devices(2);
  const std::string port = "/sys/class/infiniband/nupa0/ports/1/";
  EXPECT_EQ(text_of(port + "counters/port_xmit_data"), "1024\n");
  EXPECT_EQ(text_of(port + "counters/port_xmit_packets"), "1001\n");
  EXPECT_EQ(text_of(port + "counters/port_rcv_data"), "250\n");
  EXPECT_EQ(text_of(port + "counters/port_rcv_packets"), "1003\n");
  EXPECT_EQ(text_of(port + "counters/multicast_xmit_packets"), "1\n");
  EXPECT_EQ(text_of(port + "counters/unicast_xmit_packets"), "1000\n");
  EXPECT_EQ(text_of(port + "counters/multicast_rcv_packets"), "1005\n");
  EXPECT_EQ(text_of(port + "counters/unicast_rcv_packets"), "0\n") << "never below zero";
  EXPECT_EQ(text_of(port + "counters/port_rcv_errors"), "1006\n");
  EXPECT_EQ(text_of(port + "counters/symbol_error"), "0\n");
  const char* const further[] = {"out_of_sequence",
                                 "packet_seq_err",
                                 "local_ack_timeout_err",
                                 "out_of_buffer",
                                 "duplicate_request",
                                 "rnr_nak_retry_err",
                                 "req_cqe_error",
                                 "req_cqe_flush_error",
                                 "req_remote_access_errors",
                                 "req_remote_invalid_request",
                                 "req_transport_retries_exceeded",
                                 "req_rnr_retries_exceeded"};
  for (size_t i = 0; i < std::size(further); ++i)
    EXPECT_EQ(text_of(port + "hw_counters/" + further[i]), std::to_string(1007 + i) + "\n") << further[i];
  EXPECT_EQ(text_of("/sys/class/infiniband/nupa1/ports/1/counters/port_xmit_data"), "0\n") << "it counted nothing";
}

TEST_F(SysfsTree, OtherCounts_AreTheSameFolder) {
  publish_devices(1);
  const std::string first = tree_;
  counts_.resize(1);
  count(counts_, shm::PortCount::kXmitBytes) = 4;
  publish_devices(1);
  EXPECT_EQ(tree_, first);
}

TEST_F(SysfsTree, Refresh_ChangesCountersAndAddresses) {
  publish_devices(1);
  const std::string port = "/sys/class/infiniband/nupa0/ports/1/";
  counts_.resize(1);
  count(counts_, shm::PortCount::kXmitBytes) = 40;
  core::DeviceEntry changed = device(0);
  changed.gids[0].gid = gid_of({0xfe, 0x80}, 9);
  changed.gids.erase(changed.gids.begin() + 1);
  changed.gids.push_back({.gid = gid_of({0xfd}, 3), .index = 2});
  ASSERT_TRUE(refresh(tree_, describe({changed}, attributes_, counts_)));
  EXPECT_EQ(text_of(port + "counters/port_xmit_data"), "10\n");
  EXPECT_EQ(text_of(port + "gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0009\n");
  EXPECT_FALSE(std::filesystem::exists(tree_ + port + "gids/1"));
  EXPECT_FALSE(std::filesystem::exists(tree_ + port + "gid_attrs/types/1"));
  EXPECT_EQ(text_of(port + "gids/2"), "fd00:0000:0000:0000:0000:0000:0000:0003\n");
  EXPECT_FALSE(std::filesystem::exists(tree_ + "/unfinished"));
}

TEST_F(SysfsTree, Refresh_LeavesEqualFilesAlone) {
  publish_devices(1);
  const std::string file = tree_ + "/sys/class/infiniband/nupa0/ports/1/gids/0";
  std::filesystem::last_write_time(file, std::filesystem::file_time_type{});
  ASSERT_TRUE(refresh(tree_, describe({device(0)}, attributes_, counts_)));
  EXPECT_EQ(std::filesystem::last_write_time(file), std::filesystem::file_time_type{});
}

TEST_F(SysfsTree, Refresh_OfATreeThatWasRemoved_IsAnError) {
  publish_devices(1);
  std::filesystem::remove_all(tree_);
  EXPECT_FALSE(refresh(tree_, describe({device(0)}, attributes_, counts_)));
}

TEST_F(SysfsTree, PathsThatMayChange) {
  const std::string port = "/sys/class/infiniband/nupa0/ports/1";
  for (const char* path :
       {"/counters", "/counters/port_xmit_data", "/hw_counters/lifespan", "/gids", "/gids/0", "/gid_attrs/ndevs/0"})
    EXPECT_TRUE(may_change(port + path)) << path;
  for (const char* path : {"", "/state", "/rate"}) EXPECT_FALSE(may_change(port + path)) << path;
}

}  // namespace
}  // namespace nupa::sysfs
