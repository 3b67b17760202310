// SPDX-License-Identifier: Apache-2.0
/// Tests of the setting NUPA_DEVICES.
#include <gtest/gtest.h>
#include <nupa/device.h>
#include <net/if.h>
#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "core/device_table.h"
#include "shm/layout.h"

namespace nupa::core {
namespace {

class DeviceTable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("NUPA_DEVICES"); before != nullptr) before_ = before;
  }
  void TearDown() override {
    if (before_)
      setenv("NUPA_DEVICES", before_->c_str(), 1);
    else
      unsetenv("NUPA_DEVICES");
  }
  static Result<std::vector<DeviceEntry>> devices_of(const std::string& text) {
    setenv("NUPA_DEVICES", text.c_str(), 1);
    return read_devices();
  }

  std::optional<std::string> before_;
};

TEST_F(DeviceTable, Parse_CommasAndPluses_SeparateDevicesAndInterfaces) {
  const auto devices = parse_devices("eth0+eth1,eth2,ib-3.7");
  ASSERT_TRUE(devices);
  EXPECT_EQ((std::vector<Interfaces>{{"eth0", "eth1"}, {"eth2"}, {"ib-3.7"}}), *devices);
}

TEST_F(DeviceTable, List_ProcessHasAnOpenDevice_IgnoresALaterSetting) {
  setenv("NUPA_DEVICES", "", 1);
  auto device = open_device(list_devices().at(0).name);
  ASSERT_TRUE(device);
  setenv("NUPA_DEVICES", "nupa-no-such-if", 1);
  EXPECT_EQ(list_devices().size(), 1u);
  device->reset();
  EXPECT_TRUE(list_devices().empty()) << "nothing of the process is left";
}

TEST_F(DeviceTable, Parse_EmptyText_IsOneDeviceOnAllInterfaces) {
  const auto devices = parse_devices("");
  ASSERT_TRUE(devices);
  EXPECT_EQ(std::vector<Interfaces>{Interfaces{}}, *devices);
}

TEST_F(DeviceTable, Parse_EmptyPartsOrRepeatedInterfaces_FailsWithEinval) {
  for (const char* text : {",", "+", "eth0,", ",eth0", "eth0,,eth1", "eth0+", "+eth0", "eth0,+eth1", "eth0+,eth1",
                           "eth0+eth0", "eth0,eth0", "eth0+eth1,eth2+eth1"}) {
    const auto devices = parse_devices(text);
    ASSERT_FALSE(devices) << text;
    EXPECT_EQ(EINVAL, devices.error().code()) << text;
    EXPECT_EQ(0u, std::string(devices.error().what()).find("NUPA_DEVICES=" + std::string(text) + ": expected "));
  }
}

TEST_F(DeviceTable, Parse_MoreDevicesThanTheSegmentHolds_FailsWithEinval) {
  std::string text = "eth0";
  for (uint32_t i = 1; i < shm::kMaxDevices; ++i) text += ",eth" + std::to_string(i);
  EXPECT_TRUE(parse_devices(text));
  const auto more = parse_devices(text + ",more");
  ASSERT_FALSE(more);
  EXPECT_EQ(EINVAL, more.error().code());
}

TEST_F(DeviceTable, Read_UnknownInterface_FailsWithEnodev) {
  for (const char* text : {"nosuchif0", "lo,nosuchif0", "lo+nosuchif0"}) {
    const auto devices = devices_of(text);
    ASSERT_FALSE(devices) << text;
    EXPECT_EQ(ENODEV, devices.error().code()) << text;
    EXPECT_EQ("NUPA_DEVICES=" + std::string(text) + " names interface nosuchif0, which does not exist",
              devices.error().what());
  }
}

TEST_F(DeviceTable, Ibta11212_NodeGuid_IsTheInterfaceIdentifierOfGidZero) {
  unsetenv("NUPA_DEVICES");
  const auto devices = read_devices();
  ASSERT_TRUE(devices);
  ASSERT_EQ(1u, devices->size());
  const DeviceEntry& device = devices->front();
  EXPECT_EQ("nupa0", device_name(device.index));
  EXPECT_NE(0u, device.node_guid);
  EXPECT_EQ(device.node_guid, read_devices()->front().node_guid);
  EXPECT_EQ(0, std::memcmp(&device.node_guid, &device.gids[0].gid.raw[8], sizeof device.node_guid));
}

TEST_F(DeviceTable, Read_OneDeviceForEachInterface_HasItsOwnGuidAndAddresses) {
  std::string text;
  std::vector<uint32_t> indices;
  struct if_nameindex* list = if_nameindex();
  ASSERT_NE(nullptr, list);
  for (const auto* at = list; at->if_index != 0 && indices.size() < shm::kMaxDevices; ++at) {
    if (!text.empty()) text += ',';
    text += at->if_name;
    indices.push_back(at->if_index);
  }
  if_freenameindex(list);
  const auto devices = devices_of(text);
  ASSERT_TRUE(devices) << text;
  ASSERT_EQ(indices.size(), devices->size());
  std::set<uint64_t> guids;
  for (size_t i = 0; i < indices.size(); ++i) {
    const DeviceEntry& device = (*devices)[i];
    EXPECT_EQ(i, device.index);
    EXPECT_TRUE(guids.insert(device.node_guid).second) << i;
    EXPECT_EQ(0, std::memcmp(&device.node_guid, &device.gids[0].gid.raw[8], sizeof device.node_guid));
    for (const GidEntry& entry : device.gids)
      EXPECT_TRUE(entry.interface_index == 0 || entry.interface_index == indices[i]) << i << " " << entry.index;
  }
}

/// Two interfaces in a network namespace, which ends with the thread that enters it.
TEST_F(DeviceTable, DevicesWithOneHardwareAddress_HaveDifferentGuids) {
  constexpr const char* kMakeInterfaces =
      "exec 2>/dev/null; ip link add a0 address 02:00:00:00:00:07 type veth peer name a1 address 02:00:00:00:00:07";
  bool made = false;
  std::thread([&] {
    made = unshare(CLONE_NEWNET) == 0 && std::system(kMakeInterfaces) == 0;
    if (!made) return;
    const auto devices = devices_of("a0,a1");
    ASSERT_TRUE(devices);
    ASSERT_EQ(2u, devices->size());
    const DeviceEntry& one = devices->front();
    const DeviceEntry& other = devices->back();
    EXPECT_NE(one.node_guid, other.node_guid);
    EXPECT_NE(one.gids[0].gid, other.gids[0].gid);
    EXPECT_EQ(0, std::memcmp(&other.node_guid, &other.gids[0].gid.raw[8], sizeof other.node_guid));
  }).join();
  if (!made) GTEST_SKIP() << "no network namespace with veth interfaces can be made";
}

/// A GUID that another device has is changed: VLANs have their parent's hardware address.
TEST_F(DeviceTable, MakeUnique_SharedHardwareAddresses_GiveDifferentGuids) {
  std::vector<InterfaceId> taken;
  for (uint32_t index = 0; index < 3; ++index) {
    InterfaceId id = {0x00, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55};
    make_unique(index, taken, &id);
    EXPECT_EQ(index == 0 ? 0xff : 0, id[3]);
    EXPECT_EQ(index == 0 ? 0xfe : index, id[4]);
    taken.push_back(id);
  }
}

}  // namespace
}  // namespace nupa::core
