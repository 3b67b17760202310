/// Calls through the drop-in: what each one refuses, by which errno, and what ids show after it.
#ifdef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <infiniband/ib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#include "fixture.h"
#include "../../support/sanitizers.h"

namespace nupa::test {
namespace {

constexpr size_t kIpRequestRoom = 56;  // of a REQ's 92 bytes an IP service has 36 (IBTA annex A11)
constexpr uint16_t kWholePkey = 0xffff;

int set_id_flag(rdma_cm_id* id, int option, int on) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &on, sizeof on);
}
int set_id_byte(rdma_cm_id* id, int option, uint8_t value) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}
int resolve(rdma_cm_id* id, const char* from, const char* to, uint16_t from_port = 0, uint16_t to_port = 7) {
  Address destination(to, to_port);
  if (from == nullptr) return rdma_resolve_addr(id, nullptr, destination.get(), 100);
  return rdma_resolve_addr(id, Address(from, from_port).get(), destination.get(), 100);
}
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}
std::string source_of(rdma_cm_id* id) { return text_of(rdma_get_local_addr(id)); }
std::string destination_of(rdma_cm_id* id) { return text_of(rdma_get_peer_addr(id)); }

class RdmaCmCalls : public RdmaCm {
 protected:
  /// An id of `active_` whose address is resolved, and whose event is acknowledged.
  OwnId addressed(const char* to = "127.0.0.1") {
    OwnId id = make_id(active_.get());
    EXPECT_EQ(resolve(id.get(), nullptr, to), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    return id;
  }

  /// Runs `call` in a thread, expects that it waits, lets go of it by `release`, and expects that it ends.
  static void expect_waits_until(const std::function<void()>& call, const std::vector<std::function<void()>>& release) {
    std::atomic<bool> done{false};
    std::thread caller([&] {
      call();
      done = true;
    });
    for (const auto& step : release) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
      EXPECT_FALSE(done) << "before step " << &step - release.data();
      step();
    }
    caller.join();
  }
};

// Ids.

TEST_F(RdmaCmCalls, PortSpaces_DecideTheKindOfQueuePair) {
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

TEST_F(RdmaCmCalls, Options_HaveOneLengthEach) {
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

TEST_F(RdmaCmCalls, AckTimeout_HasFiveBits) {
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 31), 0) << errno;
  EXPECT_EQ(error_of(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 32)), EINVAL);
}

TEST_F(RdmaCmCalls, ReusingAnAddress_CannotBeTakenBackOnceBound) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 0), 0);
  ASSERT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(bind_to(id.get(), "127.0.0.1"), 0) << errno;
  EXPECT_EQ(error_of(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 0)), EINVAL);
  EXPECT_EQ(set_id_flag(id.get(), RDMA_OPTION_ID_REUSEADDR, 1), 0) << errno;
}

TEST_F(RdmaCmCalls, ReusingAnAddress_TurnedOffAgain_KeepsThePort) {
  const OwnId one = make_id(active_.get()), other = make_id(active_.get());
  for (rdma_cm_id* id : {one.get(), other.get()}) {
    ASSERT_EQ(set_id_flag(id, RDMA_OPTION_ID_REUSEADDR, 1), 0);
    ASSERT_EQ(set_id_flag(id, RDMA_OPTION_ID_REUSEADDR, 0), 0);
  }
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.1", port_of(one.get()))), EADDRINUSE);
}

TEST_F(RdmaCmCalls, AfOnly_ConcernsOnlyAddressesOfItsFamily) {
  const OwnId both = make_id(active_.get()), one = make_id(active_.get());
  ASSERT_EQ(set_id_flag(both.get(), RDMA_OPTION_ID_AFONLY, 1), 0);
  ASSERT_EQ(set_id_flag(both.get(), RDMA_OPTION_ID_AFONLY, 0), 0);
  ASSERT_EQ(bind_to(both.get(), "::"), 0);
  EXPECT_EQ(error_of(bind_to(one.get(), "0.0.0.0", port_of(both.get()))), EADDRINUSE) << "turned off again";
}

constexpr uint32_t kUsablePath = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;

ibv_path_data path_data_of(const rdma_cm_id* id, uint32_t flags, uint8_t hop_limit) {
  ibv_path_data data{};
  data.flags = flags;
  data.path.sgid = id->route.addr.addr.ibaddr.sgid;
  data.path.dgid = id->route.addr.addr.ibaddr.dgid;
  data.path.pkey = kWholePkey;
  data.path.reversible_numpath = 0x81;
  data.path.flowlabel_hoplimit = htobe32(0x54321u << 8 | hop_limit);
  data.path.tclass = 0x44;
  data.path.mtu = 0x80 | IBV_MTU_1024;  // "exactly", as in a path record
  return data;
}

TEST_F(RdmaCmCalls, PathRecords_WhatIsNoRouteIsRefused) {
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

TEST_F(RdmaCmCalls, PathRecords_TheFirstThatIsGoodBecomesTheRoute) {
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

TEST_F(RdmaCmCalls, PathRecords_WithoutAnMtuThePortsStays) {
  const OwnId id = addressed();
  ibv_path_data data = path_data_of(id.get(), kUsablePath, 9);
  data.path.mtu = 0;
  ASSERT_EQ(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &data, sizeof data), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_GE(id->route.path_rec->mtu, IBV_MTU_256);
}

// In a child process: it has opened neither a device nor the connection manager yet.

TEST(RdmaCmChild, WhereTheManagerCannotBeOpened_CallsFailWithItsError) {
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

TEST(RdmaCmChild, ConnectOfDatagramsThatFailsAtOnce_MayBeCalledAgain) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  EXPECT_TRUE(holds_in_child([] {
    setenv("NUPA_TRANSPORT", "shm", 1);  // packets are sent to any address
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

TEST(RdmaCmChild, DestroyId_WhoseEventTheParentHas_DoesNotWaitForIt) {
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

/// An IPv4 address of the first device; empty: it has none.
std::string address_of_device() {
  ibv_context** const devices = rdma_get_devices(nullptr);
  if (devices == nullptr) return "";
  std::string found;
  ibv_gid gid;
  for (int i = 0; found.empty() && ibv_query_gid(devices[0], 1, i, &gid) == 0; ++i) {
    char text[INET_ADDRSTRLEN];
    const bool ipv4 = gid.raw[0] == 0 && gid.raw[10] == 0xff;
    if (ipv4 && inet_ntop(AF_INET, &gid.raw[12], text, sizeof text) != nullptr) found = text;
  }
  rdma_free_devices(devices);
  return found;
}

TEST(RdmaCmChild, BindThatCannotOpenItsDevice_LeavesThePortFree) {
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

// Addresses.

TEST_F(RdmaCmCalls, ResolveAddr_AnAddressOfADeviceIsWhereThePathLeads) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  int found = 0;
  for (int i = 0; i < 16; ++i) {
    ibv_gid gid;
    if (ibv_query_gid(devices[0], 1, i, &gid) != 0 || gid.raw[10] != 0xff || gid.raw[0] != 0) continue;
    char text[INET_ADDRSTRLEN];
    ASSERT_NE(inet_ntop(AF_INET, &gid.raw[12], text, sizeof text), nullptr);
    const OwnId id = addressed(text);
    EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.dgid, &gid, sizeof gid), 0) << text;
    ++found;
  }
  rdma_free_devices(devices);
  EXPECT_GT(found, 0);
}

TEST_F(RdmaCmCalls, ResolveAddr_WhereNoWayLeadsIsWhatTheSystemSays) {
  const OwnId id = make_id(active_.get());
  const int error = error_of(resolve(id.get(), nullptr, "255.255.255.255"));
  // With the loopback alone there is no network.
  EXPECT_TRUE(error == EACCES || error == ENETUNREACH) << error;
}

TEST_F(RdmaCmCalls, ResolveAddr_ChecksWhatItIsGiven) {
  const OwnId id = make_id(active_.get());
  Address to("127.0.0.1", 7), from_ipv6("::1");
  sockaddr_storage strange{};
  strange.ss_family = AF_UNIX;
  auto* unknown = reinterpret_cast<sockaddr*>(&strange);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, to.get(), -1)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, unknown, 1)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), unknown, to.get(), 1)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), from_ipv6.get(), to.get(), 1)), EINVAL) << "two families";
  EXPECT_NE(error_of(resolve(id.get(), "192.0.2.77", "127.0.0.1")), 0) << "not this host's";
  EXPECT_TRUE(active_.silent());
  sockaddr_storage none{};
  EXPECT_EQ(rdma_resolve_addr(id.get(), reinterpret_cast<sockaddr*>(&none), to.get(), 0), 0)
      << "no source, and no time is a time: " << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(error_of(rdma_resolve_route(id.get(), -1)), EINVAL);
  EXPECT_EQ(rdma_resolve_route(id.get(), 0), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

TEST_F(RdmaCmCalls, ResolveAddr_ABoundIdKeepsItsFamilyAddressAndPort) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(bind_to(id.get(), "127.0.0.2"), 0) << errno;
  const uint16_t port = port_of(id.get());
  EXPECT_EQ(error_of(resolve(id.get(), nullptr, "::1")), EINVAL) << "two families";
  ASSERT_EQ(resolve(id.get(), "127.0.0.3", "127.0.0.1", 9), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_EQ(port_of(id.get()), port);
  OwnId other = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.2", port)), EADDRINUSE) << "it has the port still";
}

TEST_F(RdmaCmCalls, ResolveAddr_ASourceWithAPortIsBound) {
  OwnId other = make_id(active_.get());
  ASSERT_EQ(bind_to(other.get(), "127.0.0.2"), 0);
  const uint16_t port = port_of(other.get());
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(error_of(resolve(id.get(), "127.0.0.2", "127.0.0.1", port)), EADDRINUSE);
  EXPECT_EQ(port_of(id.get()), 0);
  other.reset();
  ASSERT_EQ(resolve(id.get(), "127.0.0.2", "127.0.0.1", port), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_EQ(port_of(id.get()), port);
  other = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.2", port)), EADDRINUSE);
}

TEST_F(RdmaCmCalls, ResolveAddr_ASourceWithoutAPortGetsOne) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), "127.0.0.2", "127.0.0.1"), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(source_of(id.get()), "127.0.0.2");
  EXPECT_NE(port_of(id.get()), 0);
  EXPECT_EQ(destination_of(id.get()), "127.0.0.1");
  EXPECT_EQ(ntohs(rdma_get_dst_port(id.get())), 7);
}

TEST_F(RdmaCmCalls, ResolveAddr_NoAddressIsThisHost) {
  for (const auto& [any, loopback] : {std::pair("0.0.0.0", "127.0.0.1"), {"::", "::1"}}) {
    const OwnId id = addressed(any);
    EXPECT_EQ(destination_of(id.get()), loopback);
    EXPECT_NE(id->verbs, nullptr);
  }
}

TEST_F(RdmaCmCalls, ResolveRoute_TellsThePath) {
  const OwnId id = make_id(active_.get());
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_TOS, 0x28), 0);
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 19), 0);
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(id->route.num_paths, 0);
  const rdma_ib_addr& ends = id->route.addr.addr.ibaddr;
  EXPECT_EQ(ends.pkey, htobe16(kWholePkey));
  EXPECT_EQ(id->port_num, 1);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(id->route.num_paths, 1);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(id->verbs, 1, &port), 0);
  EXPECT_EQ(std::memcmp(&path.sgid, &ends.sgid, sizeof path.sgid), 0);
  EXPECT_EQ(std::memcmp(&path.dgid, &ends.dgid, sizeof path.dgid), 0);
  const ibv_gid none{};
  EXPECT_NE(std::memcmp(&path.sgid, &none, sizeof none), 0);
  EXPECT_EQ(path.pkey, htobe16(kWholePkey));
  EXPECT_EQ(path.traffic_class, 0x28);
  EXPECT_EQ(path.mtu, port.active_mtu);
  EXPECT_EQ(path.packet_life_time, 18) << "half of the way there and back";
  EXPECT_EQ(path.hop_limit, 64);
  EXPECT_EQ(path.reversible, 1);
  EXPECT_EQ(path.numb_path, 1);
  EXPECT_EQ(path.mtu_selector, 2);
  EXPECT_EQ(path.rate_selector, 2);
  EXPECT_EQ(path.packet_life_time_selector, 2);
}

TEST_F(RdmaCmCalls, ResolveRoute_TellsTheTimeoutThatWasSetLast) {
  const OwnId id = addressed();
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 21), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->route.path_rec->packet_life_time, 20);
}

TEST_F(RdmaCmCalls, Bind_ThatFailsLeavesTheIdAsItWas) {
  const OwnId one = make_id(active_.get()), other = make_id(active_.get());
  ASSERT_EQ(bind_to(one.get(), "127.0.0.1"), 0);
  EXPECT_EQ(error_of(bind_to(other.get(), "127.0.0.1", port_of(one.get()))), EADDRINUSE);
  EXPECT_EQ(port_of(other.get()), 0);
  EXPECT_EQ(other->verbs, nullptr);
  EXPECT_EQ(bind_to(other.get(), "127.0.0.1"), 0) << errno;
  EXPECT_NE(port_of(other.get()), 0);
}

TEST_F(RdmaCmCalls, Bind_ToAnAddressOfAnotherHostIsRefused) {
  const OwnId id = make_id(active_.get());
  EXPECT_EQ(error_of(bind_to(id.get(), "192.0.2.1")), EADDRNOTAVAIL);  // RFC 5737: nobody's
}

TEST_F(RdmaCmCalls, Bind_ToAnAddressOfADeviceTiesTheIdToIt) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(devices[0], 1, &port), 0);
  bool bound = false;
  for (int i = 0; i < port.gid_tbl_len && !bound; ++i) {
    ibv_gid gid;
    if (ibv_query_gid(devices[0], 1, i, &gid) != 0 || gid.raw[10] != 0xff || gid.raw[0] != 0) continue;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, &gid.raw[12], 4);
    const OwnId id = make_id(active_.get());
    ASSERT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)), 0) << errno;
    EXPECT_EQ(id->verbs, devices[0]);
    EXPECT_EQ(id->port_num, 1);
    EXPECT_NE(id->pd, nullptr);
    EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.sgid, &gid, sizeof gid), 0);
    bound = true;
  }
  rdma_free_devices(devices);
  EXPECT_TRUE(bound);
}

TEST_F(RdmaCmCalls, Bind_APortSpaceOfIbAddressesGivesAFreePort) {
  sockaddr_ib any{};
  any.sib_family = AF_IB;
  any.sib_pkey = htobe16(kWholePkey);
  any.sib_sid = htobe64(RDMA_IB_IP_PS_TCP);
  any.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
  const OwnId id = make_id(active_.get(), RDMA_PS_IB), other = make_id(active_.get(), RDMA_PS_TCP);
  ASSERT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&any)), 0) << errno;
  const uint16_t port = port_of(id.get());
  EXPECT_NE(port, 0);
  sockaddr_ib shown;
  std::memcpy(&shown, rdma_get_local_addr(id.get()), sizeof shown);
  EXPECT_EQ(shown.sib_family, AF_IB);
  EXPECT_EQ(be64toh(shown.sib_sid), RDMA_IB_IP_PS_TCP | port);
  EXPECT_EQ(be64toh(shown.sib_sid_mask), ~uint64_t{0});
  EXPECT_EQ(error_of(bind_to(other.get(), "0.0.0.0", port)), EADDRINUSE) << "one space of ports";
}

TEST_F(RdmaCmCalls, PortSpaces_HaveTheirPortsApart) {
  const OwnId first = make_id(active_.get(), RDMA_PS_TCP);
  ASSERT_EQ(bind_to(first.get(), "127.0.0.1"), 0);
  for (const rdma_port_space ps : {RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB}) {
    const OwnId id = make_id(active_.get(), ps), again = make_id(active_.get(), ps);
    EXPECT_EQ(bind_to(id.get(), "127.0.0.1", port_of(first.get())), 0) << ps << " " << errno;
    EXPECT_EQ(error_of(bind_to(again.get(), "127.0.0.1", port_of(first.get()))), EADDRINUSE) << ps;
  }
}

// Listening.

TEST_F(RdmaCmCalls, Backlog_IsTheMostRequestsThatWait) {
  listen(RDMA_PS_TCP, "127.0.0.1", 1);
  const OwnId one = connecting(), other = connecting();
  ASSERT_TRUE(passive_.ready(kSoonMs));
  listener_.reset();
  int taken = 0, not_taken = 0;
  for (int i = 0; i < 2; ++i) {
    const Seen seen = active_.next();
    EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
    taken += seen.status == 28 ? 1 : 0;     // IBTA: rejected by the consumer, of which it was
    not_taken += seen.status == 8 ? 1 : 0;  // it asked again, and nobody has the service
  }
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(not_taken, 1);
}

TEST_F(RdmaCmCalls, Backlog_OfNothingIsTheLongest) {
  for (const int backlog : {0, -1}) {
    listen(RDMA_PS_TCP, "127.0.0.1", backlog);
    const OwnId one = connecting(), other = connecting();
    const OwnId first = requested();
    ASSERT_TRUE(first) << backlog;
    const OwnId second = requested();
    ASSERT_TRUE(second) << backlog;
    listener_.reset();
  }
}

/// A field of /proc/self/fdinfo; empty: the descriptor has none of that name.
std::string info_of(int fd, const std::string& field) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string word; info >> word;)
    if (word == field && info >> word) return word;
  return {};
}

/// How many events wait in the channel: the eventfd behind its descriptor counts them.
int waiting_events(const rdma_event_channel* channel) {
  const std::string behind = info_of(channel->fd, "tfd:");
  const std::string count = behind.empty() ? std::string() : info_of(std::stoi(behind), "eventfd-count:");
  return count.empty() ? -1 : std::stoi(count, nullptr, 16);
}

TEST_F(RdmaCmCalls, EventChannel_PolledForBoth_IsNeverWritable) {
  Events events;
  pollfd both{events.get()->fd, POLLIN | POLLOUT, 0};
  EXPECT_EQ(poll(&both, 1, 0), 0);
  EXPECT_NE(fcntl(events.get()->fd, F_GETFD) & FD_CLOEXEC, 0);
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(events.get(), &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
  EXPECT_EQ(poll(&both, 1, kSoonMs), 1);
  EXPECT_EQ(both.revents, POLLIN);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(events.get(), &event), 0);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(poll(&both, 1, 0), 0);
  ASSERT_EQ(fcntl(events.get()->fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rdma_get_cm_event(events.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(RdmaCmCalls, EventChannel_DescriptorThatTheProgramMoved_SaysWhetherACallWaits) {
  Events events;
  const int moved = fcntl(events.get()->fd, F_DUPFD_CLOEXEC, 200);
  ASSERT_GE(moved, 200);
  close(events.get()->fd);
  events.get()->fd = moved;
  ASSERT_EQ(fcntl(moved, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(events.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RdmaCmCalls, GetCmEvent_ChannelWasDestroyed_WaitsForTheEnd) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  // rping's thread calls for the next event while its main thread ends.
  EXPECT_TRUE(holds_in_child([] {
    std::vector<std::vector<char>> others;
    others.reserve(32);
    rdma_event_channel* destroyed = rdma_create_event_channel();
    rdma_destroy_event_channel(destroyed);
    while (others.size() < 32) others.emplace_back(16 * (others.size() + 1));  // one of them where a freed channel was
    std::atomic<pid_t> caller{0};
    std::atomic<bool> returned{false};
    std::thread([&] {
      caller = gettid();
      rdma_cm_event* event = nullptr;
      rdma_get_cm_event(destroyed, &event);
      returned = true;
    }).detach();
    while (caller == 0 || !stands_still(caller)) std::this_thread::yield();
    Events events;
    OwnId id = make_id(events.get());
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, Address("127.0.0.1", 1).get(), 100), 0);
    EXPECT_EQ(events.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_FALSE(returned);
  }));
}

TEST_F(RdmaCmCalls, Backlog_HasALimit) {
  constexpr int kLongest = 1024;  // rdma_listen() of rdma_ucm
  listen(RDMA_PS_TCP, "127.0.0.1", 1 << 20);
  std::vector<OwnId> active;
  rdma_conn_param param = param_of();
  while (active.size() < kLongest + 3) {
    active.push_back(resolved());
    ++param.qp_num;  // another connection of the same one would end the one before
    ASSERT_EQ(rdma_connect(active.back().get(), &param), 0) << errno;
  }
  const int waiting = waiting_events(passive_.get());
  EXPECT_LE(waiting, kLongest);
  const char* const transport = std::getenv("NUPA_TRANSPORT");
  const bool is_on_its_way = transport != nullptr && std::string_view(transport) == "roce";
  EXPECT_TRUE(waiting == kLongest || is_on_its_way) << waiting << " of the requests have arrived";
  listener_.reset();
}

TEST_F(RdmaCmCalls, GetRequest_IsForSynchronousListeners) {
  listen();
  const OwnId active = connecting();
  ASSERT_TRUE(passive_.ready(kSoonMs));
  rdma_cm_id* request = nullptr;
  EXPECT_EQ(error_of(rdma_get_request(listener_.get(), &request)), EINVAL) << "it has the program's channel";
  const OwnId taken(request);
  const OwnId waits = make_id(nullptr);
  EXPECT_EQ(error_of(rdma_get_request(waits.get(), nullptr)), EINVAL);
}

/// A synchronous listener, and who asks it by a channel.
class RdmaCmRequests : public RdmaCmCalls {
 protected:
  void listen_alone(rdma_port_space ps) {
    listener_ = make_id(nullptr, ps);
    ASSERT_EQ(bind_to(listener_.get(), "127.0.0.1"), 0);
    ASSERT_EQ(rdma_listen(listener_.get(), 4), 0);
    port_ = port_of(listener_.get());
  }
  OwnId asking(rdma_port_space ps) {
    OwnId id = resolved("127.0.0.1", ps);
    make_qp(id.get());
    EXPECT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
    return id;
  }
  OwnId taken() {
    rdma_cm_id* raw = nullptr;
    EXPECT_EQ(rdma_get_request(listener_.get(), &raw), 0) << errno;
    return OwnId(raw);
  }
};

TEST_F(RdmaCmRequests, AnIdShowsItsRequestUntilItIsAnswered) {
  // What is not acknowledged would hold up the listener, which may end first.
  listen_alone(RDMA_PS_UDP);
  const OwnId active = asking(RDMA_PS_UDP);
  OwnId accepted = taken();
  ASSERT_TRUE(accepted);
  ASSERT_NE(accepted->event, nullptr);
  EXPECT_EQ(accepted->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(accepted->event->listen_id, listener_.get());
  EXPECT_EQ(accepted->event->id, accepted.get());
  EXPECT_NE(accepted->channel, listener_->channel);
  make_qp(accepted.get());
  ASSERT_EQ(rdma_accept(accepted.get(), nullptr), 0) << errno;
  EXPECT_EQ(accepted->event, nullptr) << "accepted";
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  const OwnId second = asking(RDMA_PS_UDP);
  OwnId rejected = taken();
  ASSERT_TRUE(rejected);
  ASSERT_EQ(rdma_reject(rejected.get(), nullptr, 0), 0) << errno;
  EXPECT_EQ(rejected->event, nullptr) << "rejected";
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_UNREACHABLE);
  if (accepted->event != nullptr || rejected->event != nullptr) return;  // the listener would wait without end
  listener_.reset();
}

TEST_F(RdmaCmRequests, ARequestWhoseQueuePairCannotBeMadeIsRejected) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_PASSIVE;
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* list = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "0", &hints, &list), 0);
  ibv_qp_init_attr attr{};
  attr.cap.max_send_wr = ~0u;
  attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_create_ep(&raw, list, nullptr, &attr), 0) << errno;
  rdma_freeaddrinfo(list);
  listener_.reset(raw);
  ASSERT_EQ(rdma_listen(raw, 4), 0);
  port_ = port_of(raw);
  const OwnId active = asking(RDMA_PS_TCP);
  rdma_cm_id* request = nullptr;
  EXPECT_NE(error_of(rdma_get_request(raw, &request)), 0);
  EXPECT_EQ(request, nullptr);
  const Seen seen = active_.next();
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, 28);
}

TEST_F(RdmaCmRequests, ARequestThatGetsNoDescriptorIsRejected) {
  // That of a synchronous listener has a channel of its own.
  listen_alone(RDMA_PS_TCP);
  const OwnId first = asking(RDMA_PS_TCP);
  pollfd asked{listener_->channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&asked, 1, kSoonMs), 1);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(asked.fd);
  ::close(lowest);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  OwnId next;
  std::thread server([&] { next = taken(); });
  const Seen seen = active_.next();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(seen.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(seen.status, 28);
  const OwnId second = asking(RDMA_PS_TCP);
  server.join();
  ASSERT_TRUE(next) << "the listener goes on";
  EXPECT_NE(next->channel, listener_->channel);
}

// Endpoints.

class RdmaCmEndpoints : public RdmaCmCalls {
 protected:
  RdmaCmEndpoints() {
    info_.ai_port_space = RDMA_PS_TCP;
    info_.ai_qp_type = IBV_QPT_RC;
    queues_.cap.max_send_wr = queues_.cap.max_recv_wr = 4;
    queues_.cap.max_send_sge = queues_.cap.max_recv_sge = 1;
  }
  int create(ibv_pd* pd, ibv_qp_init_attr* queues) {
    rdma_cm_id* raw = nullptr;
    const int result = rdma_create_ep(&raw, &info_, pd, queues);
    EXPECT_EQ(raw == nullptr, result != 0);
    made_.reset(raw);
    return result;
  }

  rdma_addrinfo info_{};
  ibv_qp_init_attr queues_{};
  OwnId made_;
};

TEST_F(RdmaCmEndpoints, WhatCannotBeMadeLeavesNothing) {
  listen();
  rdma_cm_id* raw = nullptr;
  EXPECT_EQ(error_of(rdma_create_ep(nullptr, &info_, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_create_ep(&raw, nullptr, nullptr, nullptr)), EINVAL);
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "no destination";
  Address to("127.0.0.1", port_);
  info_.ai_flags = RAI_PASSIVE;
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "no source";
  info_.ai_src_addr = to.get();
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EADDRINUSE);
  info_ = {};
  info_.ai_dst_addr = to.get();
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EPROTONOSUPPORT) << "no port space";
  info_.ai_port_space = RDMA_PS_TCP;
  info_.ai_qp_type = IBV_QPT_RC;
  ibv_path_data path{};
  info_.ai_route = &path;
  info_.ai_route_len = sizeof path;
  EXPECT_EQ(error_of(create(nullptr, nullptr)), EINVAL) << "a route that is none";
  info_.ai_route_len = 0;
  queues_.cap.max_send_wr = ~0u;
  EXPECT_NE(error_of(create(nullptr, &queues_)), 0);
}

TEST_F(RdmaCmEndpoints, AnActiveOneIsReadyToConnect) {
  listen();
  Address from("127.0.0.3"), to("127.0.0.1", port_);
  info_.ai_src_addr = from.get();
  info_.ai_dst_addr = to.get();
  const std::string first = "of the name service ";
  info_.ai_connect = const_cast<char*>(first.data());
  info_.ai_connect_len = first.size();
  queues_.qp_type = IBV_QPT_UD;  // the address information goes before
  ASSERT_EQ(create(nullptr, &queues_), 0) << errno;
  EXPECT_EQ(queues_.qp_type, IBV_QPT_RC);
  ASSERT_NE(made_->qp, nullptr);
  EXPECT_EQ(made_->qp->qp_type, IBV_QPT_RC);
  EXPECT_EQ(made_->qp_type, IBV_QPT_RC);
  EXPECT_EQ(made_->route.num_paths, 1);
  EXPECT_EQ(source_of(made_.get()), "127.0.0.3");
  ASSERT_EQ(rdma_migrate_id(made_.get(), active_.get()), 0) << errno;
  const std::string too_long(kIpRequestRoom - first.size() + 1, 'x'), rest(kIpRequestRoom - first.size(), 'r');
  rdma_conn_param param = param_of(too_long);
  EXPECT_EQ(error_of(rdma_connect(made_.get(), &param)), EINVAL);
  param = param_of(rest);
  ASSERT_EQ(rdma_connect(made_.get(), &param), 0) << errno;
  const Seen seen = passive_.next();
  ASSERT_EQ(seen.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(seen.data, first + rest);
  const OwnId passive(seen.id);
}

TEST_F(RdmaCmEndpoints, ARouteThatComesAlongIsTaken) {
  OwnId known = addressed();
  ibv_path_data path = path_data_of(known.get(), kUsablePath, 13);
  Address to("127.0.0.1", 7);
  info_.ai_dst_addr = to.get();
  info_.ai_route = &path;
  info_.ai_route_len = sizeof path;
  ASSERT_EQ(create(nullptr, nullptr), 0) << errno;
  ASSERT_EQ(made_->route.num_paths, 1);
  EXPECT_EQ(made_->route.path_rec->hop_limit, 13);
  EXPECT_EQ(made_->qp, nullptr) << "none is asked for";
}

TEST_F(RdmaCmEndpoints, APassiveOneGivesItsRequestsTheQueuePair) {
  OwnId known = addressed();
  ibv_pd* pd = ibv_alloc_pd(known->verbs);
  ASSERT_NE(pd, nullptr);
  Address at("127.0.0.1");
  info_.ai_flags = RAI_PASSIVE;
  info_.ai_src_addr = at.get();
  ASSERT_EQ(create(pd, &queues_), 0) << errno;
  EXPECT_EQ(made_->qp, nullptr);
  ASSERT_EQ(rdma_listen(made_.get(), 4), 0) << errno;
  port_ = port_of(made_.get());
  OwnId active = connecting();
  rdma_cm_id* raw = nullptr;
  ASSERT_EQ(rdma_get_request(made_.get(), &raw), 0) << errno;
  OwnId passive(raw);
  ASSERT_NE(raw->qp, nullptr);
  EXPECT_EQ(raw->qp->pd, pd);
  EXPECT_EQ(raw->pd, pd);
  passive.reset();
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

// Channels.

TEST_F(RdmaCmCalls, Destroying_ASynchronousId_ClosesItsChannel) {
  constexpr int kTimes = 64;
  const auto before = open_descriptors();
  for (int i = 0; i < kTimes; ++i) make_id(nullptr).reset();
  EXPECT_LT(open_descriptors() - before, kTimes / 2);
}

TEST_F(RdmaCmCalls, Destroying_WaitsForEveryAcknowledgement) {
  OwnId id = addressed();
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  rdma_cm_event* first = active_.take();
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(set_id_byte(id.get(), RDMA_OPTION_ID_TOS, 0), 0);
  // A second event of the same id: an answer to its request.
  listen();
  listener_.reset();
  make_qp(id.get());
  ASSERT_EQ(rdma_connect(id.get(), nullptr), 0) << errno;
  rdma_cm_event* second = active_.take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->event, RDMA_CM_EVENT_REJECTED);
  rdma_destroy_qp(id.get());
  expect_waits_until([&] { id.reset(); }, {[&] { EXPECT_EQ(rdma_ack_cm_event(second), 0); },
                                           [&] { EXPECT_EQ(rdma_ack_cm_event(first), 0); }});
}

TEST_F(RdmaCmCalls, DestroyingAListener_WaitsForEveryRequest) {
  listen();
  const OwnId one = connecting(), other = connecting();
  rdma_cm_event *first = passive_.take(), *second = passive_.take();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const OwnId first_id(first->id), second_id(second->id);
  expect_waits_until([&] { listener_.reset(); }, {[&] { EXPECT_EQ(rdma_ack_cm_event(first), 0); },
                                                  [&] { EXPECT_EQ(rdma_ack_cm_event(second), 0); }});
}

TEST_F(RdmaCmCalls, DestroyingARequest_DoesNotWaitForItsListenersEvent) {
  listen();
  const OwnId active = connecting();
  rdma_cm_event* event = passive_.take();
  ASSERT_NE(event, nullptr);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    EXPECT_EQ(rdma_destroy_id(event->id), 0);
    destroyed = true;
  });
  for (int waited = 0; waited < kSoonMs && !destroyed; ++waited)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(destroyed);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  destroyer.join();
}

TEST_F(RdmaCmCalls, Migrating_WaitsForAcknowledgements) {
  const Events other;
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  rdma_cm_event* event = active_.take();
  ASSERT_NE(event, nullptr);
  expect_waits_until([&] { EXPECT_EQ(rdma_migrate_id(id.get(), other.get()), 0) << errno; },
                     {[&] { EXPECT_EQ(rdma_ack_cm_event(event), 0); }});
  EXPECT_EQ(id->channel, other.get());
  id.reset();
}

TEST_F(RdmaCmCalls, Migrating_KeepsTheOrderOfEvents) {
  const Events other;
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0) << "while its event waits: " << errno;
  ASSERT_EQ(rdma_migrate_id(id.get(), other.get()), 0);
  EXPECT_TRUE(active_.silent());
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_TRUE(other.silent());
  id.reset();
}

TEST_F(RdmaCmCalls, Migrating_ASynchronousIdToAChannel_ClosesItsOwn) {
  constexpr int kTimes = 64;
  const auto before = open_descriptors();
  for (int i = 0; i < kTimes; ++i) {
    const OwnId id = make_id(nullptr);
    ASSERT_EQ(rdma_migrate_id(id.get(), active_.get()), 0) << errno;
  }
  EXPECT_LT(open_descriptors() - before, kTimes / 2);
}

TEST_F(RdmaCmCalls, Migrating_ToItsOwnChannelChangesNothing) {
  OwnId id = make_id(active_.get());
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  ASSERT_EQ(rdma_migrate_id(id.get(), active_.get()), 0) << errno;
  EXPECT_EQ(id->channel, active_.get());
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_TRUE(active_.silent());
}

TEST_F(RdmaCmCalls, Migrating_ARequestLeavesItsListenersEventThere) {
  const Events other;
  listen();
  const OwnId active = connecting();
  OwnId passive = requested();
  ASSERT_TRUE(passive);
  ASSERT_EQ(rdma_migrate_id(passive.get(), other.get()), 0) << errno;
  make_qp(passive.get());
  ASSERT_EQ(rdma_accept(passive.get(), nullptr), 0) << errno;
  EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(other.next().type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_TRUE(passive_.silent());
  passive.reset();
}

TEST_F(RdmaCmCalls, Events_OfSeveralIdsComeInTheirOrder) {
  OwnId ids[3];
  for (OwnId& id : ids) {
    id = make_id(active_.get());
    ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0);
  }
  for (OwnId& id : ids) ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0);
  ids[1].reset();
  for (const int type : {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED})
    for (const int i : {0, 2}) {
      const Seen seen = active_.next();
      ASSERT_EQ(seen.type, type);
      EXPECT_EQ(seen.id, ids[i].get());
    }
  EXPECT_TRUE(active_.silent()) << "its events went with it";
}

TEST_F(RdmaCmCalls, Channels_AreNotInheritedByPrograms) {
  EXPECT_NE(fcntl(active_.get()->fd, F_GETFD) & FD_CLOEXEC, 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(error_of(rdma_get_cm_event(active_.get(), nullptr)), EINVAL);
  EXPECT_EQ(error_of(rdma_get_cm_event(nullptr, &event)), EINVAL);
}

TEST_F(RdmaCmCalls, SynchronousCalls_ShowTheLastEventOnly) {
  const OwnId id = make_id(nullptr);
  ASSERT_EQ(resolve(id.get(), nullptr, "127.0.0.1"), 0) << errno;
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(id.get(), 100), 0) << errno;
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->event->id, id.get());
}

}  // namespace
}  // namespace nupa::test
#endif  // NUPA_TEST_DROPIN
