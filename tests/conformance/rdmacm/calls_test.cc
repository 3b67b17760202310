// SPDX-License-Identifier: Apache-2.0
/// Ids, their options and path records: the errno of each refused call. Calls in a child process.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "../../support/sanitizers.h"
#include "calls.h"
#include "fixture.h"

namespace nupa::test {
namespace {

int set_id_flag(rdma_cm_id* id, int option, int on) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &on, sizeof on);
}

// Ids.

TEST_F(RdmaCmCalls, PortSpaces_DetermineTheQueuePairType) {
  int context = 0;
  const std::pair<rdma_port_space, ibv_qp_type> kKinds[] = {
      {RDMA_PS_TCP, IBV_QPT_RC}, {RDMA_PS_UDP, IBV_QPT_UD}, {RDMA_PS_IPOIB, IBV_QPT_UD}, {RDMA_PS_IB, IBV_QPT_RC}};
  for (const auto& [ps, type] : kKinds) {
    const OwnId id = make_id(active_.get(), ps, &context);
    EXPECT_EQ(id->ps, ps);
    EXPECT_EQ(id->qp_type, type) << ps;
    EXPECT_EQ(id->context, &context);
    EXPECT_EQ(id->channel, active_.get());
    EXPECT_TRUE(id->verbs == nullptr && id->qp == nullptr && id->event == nullptr && id->pd == nullptr);
    EXPECT_EQ(id->port_num, 0);
  }
  rdma_cm_id* none = nullptr;
  EXPECT_EQ(error_of(rdma_create_id(active_.get(), &none, nullptr, static_cast<rdma_port_space>(0x107))),
            EPROTONOSUPPORT);
  EXPECT_EQ(none, nullptr);
  const OwnId own_channel = make_id(nullptr);
  EXPECT_TRUE(own_channel->channel != nullptr && own_channel->channel != active_.get());
}

TEST_F(RdmaCmCalls, EveryCallOnADestroyedId_IsRefused) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(active_.get(), &id, nullptr, RDMA_PS_UDP), 0);
  ASSERT_EQ(rdma_destroy_id(id), 0);
  Address to("127.0.0.1", 7);
  rdma_cm_id* request = nullptr;
  ibv_qp_attr attr{};
  int mask = 0, on = 1;
  EXPECT_EQ(error_of(rdma_resolve_addr(id, nullptr, to.get(), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on)), EINVAL);
  EXPECT_EQ(error_of(rdma_get_request(id, &request)), EINVAL);
  EXPECT_EQ(error_of(rdma_reject(id, nullptr, 0)), EINVAL);
  EXPECT_EQ(error_of(rdma_reject_ece(id, nullptr, 0)), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(id)), EINVAL);
  EXPECT_EQ(error_of(rdma_notify(id, IBV_EVENT_COMM_EST)), EINVAL);
  EXPECT_EQ(error_of(rdma_init_qp_attr(id, &attr, &mask)), EINVAL);
  EXPECT_EQ(error_of(rdma_join_multicast(id, Address("239.1.2.3").get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_leave_multicast(id, Address("239.1.2.3").get())), EINVAL);
  EXPECT_EQ(rdma_get_src_port(id), 0);
  EXPECT_EQ(rdma_get_dst_port(id), 0);
}

TEST_F(RdmaCmCalls, Devices_AreOpenedOnce) {
  int count = -1;
  ibv_context** list = rdma_get_devices(&count);
  ASSERT_NE(list, nullptr) << errno;
  ASSERT_GE(count, 1);
  ibv_context** again = rdma_get_devices(nullptr);
  ASSERT_NE(again, nullptr);
  for (int i = 0; i < count; ++i) EXPECT_TRUE(list[i] != nullptr && list[i] == again[i]) << i;
  EXPECT_EQ(list[count], nullptr) << "the list's end";
  const OwnId one = addressed(), other = addressed();
  EXPECT_EQ(one->verbs, other->verbs);
  EXPECT_EQ(one->pd, other->pd) << "one protection domain for each device";
  int known = 0;
  for (int i = 0; i < count; ++i) known += list[i] == one->verbs ? 1 : 0;
  EXPECT_EQ(known, 1);
  rdma_free_devices(list);
  rdma_free_devices(again);
}

// Options.

TEST_F(RdmaCmCalls, Options_OfAWrongLength_AreRefused) {
  const OwnId id = make_id(active_.get());
  uint8_t bytes[16] = {};
  const std::pair<int, size_t> kLengths[] = {{RDMA_OPTION_ID_TOS, 1},
                                             {RDMA_OPTION_ID_REUSEADDR, sizeof(int)},
                                             {RDMA_OPTION_ID_AFONLY, sizeof(int)},
                                             {RDMA_OPTION_ID_ACK_TIMEOUT, 1}};
  for (const auto& [option, length] : kLengths) {
    for (const size_t wrong : {size_t{0}, length - 1, length + 1})
      EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, option, bytes, wrong)), EINVAL) << option;
    EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, option, nullptr, length)), EINVAL) << option;
    EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, option, bytes, length), 0) << option << " " << errno;
  }
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH + 1, bytes, 1)), ENOSYS);
}

TEST_F(RdmaCmCalls, AckTimeout_MoreThanFiveBits_IsRefused) {
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 31), 0) << errno;
  EXPECT_EQ(error_of(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 32)), EINVAL);
}

TEST_F(RdmaCmCalls, ReuseAddr_TurnedOffAfterBind_IsRefused) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 0), 0);
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << errno;
  EXPECT_EQ(error_of(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 0)), EINVAL);
  EXPECT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0) << errno;
}

TEST_F(RdmaCmCalls, ReuseAddr_TurnedOffBeforeBind_DoesNotShareThePort) {
  const OwnId one = make_id(active_.get()), other = make_id(active_.get());
  for (rdma_cm_id* id : {one.get(), other.get()}) {
    ASSERT_EQ(set_id_flag(id, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(set_id_flag(id, RDMA_OPTION_ID_REUSEADDR, 0), 0);
  }
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.1", port_of(one.get()))), EADDRINUSE);
}

TEST_F(RdmaCmCalls, AfOnly_TurnedOffBeforeBind_CoversBothFamilies) {
  const OwnId both = make_id(active_.get()), one = make_id(active_.get());
  ASSERT_EQ(set_id_flag(both.get(), RDMA_OPTION_ID_AFONLY, 1), 0);
  ASSERT_EQ(set_id_flag(both.get(), RDMA_OPTION_ID_AFONLY, 0), 0);
  ASSERT_EQ(bind_to(both.get(), "::"), 0);
  EXPECT_EQ(error_of(bind_to(one.get(), "0.0.0.0", port_of(both.get()))), EADDRINUSE) << "turned off again";
}

TEST_F(RdmaCmCalls, PathRecords_NoneUsable_AreRefused) {
  const OwnId early = make_id(active_.get());
  ibv_path_data data{};
  EXPECT_EQ(error_of(rdma_set_option(early.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &data, sizeof data)), EINVAL)
      << "no address is resolved";
  const OwnId id = addressed();
  const auto set = [&](const ibv_path_data& path, size_t length) {
    ibv_path_data copy[2] = {path, path};
    return rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, copy, length);
  };
  const ibv_path_data good = path_data_of(id.get(), kUsablePath, 9);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, nullptr, sizeof data)), EINVAL);
  EXPECT_EQ(error_of(set(good, 0)), EINVAL);
  EXPECT_EQ(error_of(set(good, sizeof good - 1)), EINVAL);
  EXPECT_EQ(error_of(set(good, sizeof good + 1)), EINVAL);
  for (const uint32_t missing : {IBV_PATH_FLAG_GMP, IBV_PATH_FLAG_PRIMARY, IBV_PATH_FLAG_BIDIRECTIONAL})
    EXPECT_EQ(error_of(set(path_data_of(id.get(), kUsablePath & ~missing, 9), sizeof good)), EINVAL) << missing;
  ibv_path_data other = good;
  other.path.sgid.raw[15] ^= 1;
  EXPECT_EQ(error_of(set(other, sizeof other)), EINVAL) << "another port's address";
  EXPECT_TRUE(active_.silent());
  EXPECT_EQ(set(good, sizeof good), 0) << "after all that: " << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(error_of(set(good, sizeof good)), EINVAL) << "it has a route";
  EXPECT_EQ(error_of(rdma_resolve_route(id.get(), 100)), EINVAL);
}

TEST_F(RdmaCmCalls, PathRecords_FirstUsableOne_BecomesTheRoute) {
  const OwnId id = addressed();
  ibv_path_data list[] = {path_data_of(id.get(), IBV_PATH_FLAG_OUTBOUND, 9), path_data_of(id.get(), kUsablePath, 10),
                          path_data_of(id.get(), kUsablePath, 11)};
  list[1].path.dgid.raw[15] ^= 1;  // another host's
  ASSERT_EQ(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, list, sizeof list), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(id->route.num_paths, 1);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  EXPECT_EQ(path.hop_limit, 10);
  EXPECT_EQ(std::memcmp(&path.sgid, &id->route.addr.addr.ibaddr.sgid, sizeof path.sgid), 0);
  EXPECT_EQ(std::memcmp(&path.dgid, &list[1].path.dgid, sizeof path.dgid), 0);
  EXPECT_EQ(be32toh(path.flow_label), 0x54321u);
  EXPECT_EQ(path.traffic_class, 0x44);
  EXPECT_EQ(path.mtu, IBV_MTU_1024);
}

TEST_F(RdmaCmCalls, PathRecords_WithoutAnMtu_KeepThePortsMtu) {
  const OwnId id = addressed();
  ibv_path_data data = path_data_of(id.get(), kUsablePath, 9);
  data.path.mtu = 0;
  ASSERT_EQ(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &data, sizeof data), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_GE(id->route.path_rec->mtu, IBV_MTU_256);
}

// In a child process: it has opened neither a device nor the connection manager yet.

TEST(RdmaCmChild, ManagerCannotBeOpened_CallsFailWithItsError) {
  EXPECT_TRUE(holds_in_child([] {
    setenv("NUPA_TRANSPORT", "no such transport", 1);
    const Events events;
    const OwnId id = make_id(events.get());
    for (const char* address : {"0.0.0.0", "127.0.0.1"}) {
      errno = 0;
      EXPECT_EQ(error_of(bind_to(id.get(), address)), EINVAL) << address;
    }
    errno = 0;
    EXPECT_EQ(error_of(resolve(id.get(), nullptr, "127.0.0.1")), EINVAL);
    errno = 0;
    EXPECT_EQ(error_of(rdma_listen(id.get(), 1)), EINVAL);
    EXPECT_EQ(port_of(id.get()), 0);
  }));
}

TEST(RdmaCmChild, ConnectOfDatagrams_FailsAtOnce_MayBeCalledAgain) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  EXPECT_TRUE(holds_in_child([] {
    if (!runs_over("pool")) setenv("NUPA_TRANSPORT", "shm", 1);  // packets are sent to any address
    const Events events;
    const OwnId id = make_id(events.get(), RDMA_PS_UDP);
    ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0) << errno;
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    ibv_path_data data = path_data_of(id.get(), kUsablePath, 9);
    data.path.dgid = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1}};  // RFC 5737: nobody's
    ASSERT_EQ(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &data, sizeof data), 0) << errno;
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(error_of(rdma_connect(id.get(), nullptr)), EHOSTUNREACH);
    EXPECT_EQ(error_of(rdma_connect(id.get(), nullptr)), EHOSTUNREACH) << "as at the first time";
  }));
}

TEST(RdmaCmChild, Fork_WhileAThreadLooksUpIds_TheChildMakesItsOwn) {
  constexpr int kForks = 200;
  const Events events;
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) rdma_disconnect(nullptr);  // which is none: nearly all that the call does is under the lock
  });
  bool holds = true;
  for (int i = 0; i < kForks && holds; ++i) holds = holds_in_child([&] { make_id(events.get()).reset(); });
  over = true;
  other.join();
  EXPECT_TRUE(holds) << "a lock that the other thread held";
}

TEST(RdmaCmChild, DestroyId_ParentHasItsEvent_DoesNotWaitForIt) {
  const Events events;
  const OwnId id = make_id(events.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0) << errno;
  rdma_cm_event* const event = events.take();
  ASSERT_NE(event, nullptr);
  rdma_cm_id* const inherited = id.get();
  EXPECT_TRUE(holds_in_child([&] { EXPECT_EQ(rdma_destroy_id(inherited), 0) << errno; }));
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
}

TEST(RdmaCmChild, DestroyId_OfTheParentsListener_OpensNothing) {
  const Events events;
  const OwnId id = make_id(events.get());
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << errno;
  ASSERT_EQ(rdma_listen(id.get(), 1), 0) << errno;
  rdma_cm_id* const inherited = id.get();
  EXPECT_TRUE(holds_in_child([&] {
    EXPECT_EQ(rdma_destroy_id(inherited), 0) << errno;
    const std::filesystem::directory_iterator threads("/proc/self/task");
    EXPECT_EQ(std::distance(begin(threads), end(threads)), 1) << "a manager of its own has a thread";
  }));
}

/// An IPv4 address of a device; empty: none has one.
std::string address_of_device() {
  int count = 0;
  ibv_context** const devices = rdma_get_devices(&count);
  if (devices == nullptr) return "";
  std::string found;
  ibv_gid gid;
  for (int at = 0; found.empty() && at < 16 * count; ++at) {
    char text[INET_ADDRSTRLEN];
    if (ibv_query_gid(devices[at / 16], 1, at % 16, &gid) == 0 && is_ipv4(gid) &&
        inet_ntop(AF_INET, &gid.raw[12], text, sizeof text) != nullptr)
      found = text;
  }
  rdma_free_devices(devices);
  return found;
}

TEST(RdmaCmChild, Bind_DeviceCannotBeOpened_LeavesThePortFree) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  const std::string address = address_of_device();
  ASSERT_NE(address, "");
  EXPECT_TRUE(holds_in_child([&] {
    const Events events;
    OwnId any = make_id(events.get());
    ASSERT_EQ(bind_to(any.get(), "0.0.0.0"), 0) << errno;  // which opens the manager, and no device
    const uint16_t port = port_of(any.get());
    rlimit all;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
    int error = EMFILE;
    constexpr rlim_t kMoreThanEnough = 64;
    // The port takes the first of the descriptors that there are, the device others.
    for (rlim_t count = 0; error != 0 && count < kMoreThanEnough; ++count) {
      any.reset();
      const OwnId id = make_id(events.get());
      const int lowest = ::dup(STDERR_FILENO);
      ::close(lowest);
      const rlimit few{static_cast<rlim_t>(lowest) + count, all.rlim_max};
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
      error = error_of(bind_to(id.get(), address.c_str(), port));
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
      any = make_id(events.get());
      EXPECT_EQ(error_of(bind_to(any.get(), "0.0.0.0", port)), error == 0 ? EADDRINUSE : 0) << count;
    }
    EXPECT_EQ(error, 0) << "there were descriptors";
  }));
}

}  // namespace
}  // namespace nupa::test
