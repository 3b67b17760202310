// SPDX-License-Identifier: Apache-2.0
/// Multicast between processes (IBTA 10.5.2): each process with a member gets the datagrams, and so does the sender's
/// own unless its queue pair blocks the loopback.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint32_t kGroupQpn = 0xffffff;
constexpr size_t kGrh = 40;

/// 239.1.1.67, by the IPv4 address, which is the second GID.
class Member : public Verbs {
 public:
  using Verbs::connect;
  using Verbs::context;
  using Verbs::next;
  using Verbs::post_recv;
  using Verbs::TearDown;
  void TestBody() override {}  // the child of a fork makes one of its own
  void SetUp() override {
    place = place_of_network_device();
    Verbs::SetUp();
    group.raw[10] = group.raw[11] = 0xff;
    group.raw[12] = 239;
    group.raw[13] = group.raw[14] = 1;
    group.raw[15] = 67;
    mr = reg(memory, sizeof memory);
    qp = hears_itself ? make_qp(IBV_QPT_UD) : make_blocking_qp();
    ASSERT_NE(qp, nullptr) << std::strerror(errno);
    connect(qp, qp);
    EXPECT_EQ(ibv_attach_mcast(qp, &group, 0), 0);
    EXPECT_EQ(post_recv(qp, 7, memory, 128, mr->lkey), 0);
  }
  ibv_qp* make_blocking_qp() {
    const ibv_qp_init_attr plain = init(IBV_QPT_UD);
    ibv_qp_init_attr_ex attr{};
    std::memcpy(&attr, &plain, offsetof(ibv_qp_init_attr, sq_sig_all));
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    attr.pd = pd;
    attr.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    return keep(ibv_create_qp_ex(context, &attr));
  }
  void leave() {
    EXPECT_EQ(ibv_detach_mcast(qp, &group, 0), 0);
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
    TearDown();
  }
  void send(const char* text) {
    ibv_ah_attr attr = path();
    attr.grh.sgid_index = 1;
    attr.grh.dgid = group;
    ah = ibv_create_ah(pd, &attr);
    std::strcpy(memory + 256, text);
    ibv_sge sge{reinterpret_cast<uint64_t>(memory + 256), 16, mr->lkey};
    ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
    wr.wr.ud = {ah, kGroupQpn, kQkey};
    EXPECT_EQ(post(qp, wr), 0);
  }
  bool got(const char* text) const { return std::strcmp(memory + kGrh, text) == 0; }

  alignas(4096) char memory[512] = {};
  bool hears_itself = true;
  ibv_gid group{};
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
  ibv_ah* ah = nullptr;
};

TEST(VerbsGroups, Multicast_EachProcess_GetsACopy) {
  constexpr int kProcesses = 3;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t children[kProcesses];
  for (pid_t& child : children) {
    child = fork();  // before anybody opens the device
    ASSERT_GE(child, 0);
    if (child != 0) continue;
    alarm(60);
    Member mine;
    mine.SetUp();
    bool good = write(ready[1], "r", 1) == 1 && mine.next().wr_id == 7 && mine.got("to all");
    mine.leave();
    good = good && !::testing::Test::HasFailure();
    _exit(good ? 0 : 1);
  }
  char told;
  for (int i = 0; i < kProcesses; ++i) ASSERT_EQ(read(ready[0], &told, 1), 1);
  Member mine;
  mine.SetUp();
  mine.send("to all");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(mine.next().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(mine.got("to all"));
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  mine.leave();
  close(ready[0]);
  close(ready[1]);
}

TEST(VerbsGroups, Multicast_LoopbackIsBlocked_ReceivesFromOthersOnly) {  // IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    Member mine;
    mine.hears_itself = false;
    mine.SetUp();
    bool good = write(ready[1], "r", 1) == 1 && mine.next().wr_id == 7 && mine.got("to others");
    mine.send("an answer");
    good = good && mine.next().wr_id == 1;
    mine.leave();
    good = good && !::testing::Test::HasFailure();
    _exit(good ? 0 : 1);
  }
  char told;
  ASSERT_EQ(read(ready[0], &told, 1), 1);
  Member mine;
  mine.hears_itself = false;
  mine.SetUp();
  ibv_qp* neighbour = mine.make_blocking_qp();
  mine.connect(neighbour, neighbour);
  ASSERT_EQ(ibv_attach_mcast(neighbour, &mine.group, 0), 0);
  char* first = mine.memory + 128;
  char* second = mine.memory + 384;
  EXPECT_EQ(mine.post_recv(neighbour, 8, first, 128, mine.mr->lkey), 0);
  EXPECT_EQ(mine.post_recv(neighbour, 9, second, 128, mine.mr->lkey), 0);
  mine.send("to others");
  // The send, the neighbour's copy, and then one of the answer for each.
  uint32_t seen = 0;
  for (int i = 0; i < 4; ++i) {
    const ibv_wc wc = mine.next();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    seen |= 1u << wc.wr_id;
  }
  EXPECT_EQ(seen, 1u << 1 | 1u << 7 | 1u << 8 | 1u << 9);
  EXPECT_TRUE(mine.got("an answer"));
  // The child may answer before the neighbour has its copy: two senders to a group have no order.
  const std::multiset<std::string> copies{first + kGrh, second + kGrh};
  EXPECT_EQ(copies, (std::multiset<std::string>{"an answer", "to others"}));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(ibv_detach_mcast(neighbour, &mine.group, 0), 0);
  mine.leave();
  close(ready[0]);
  close(ready[1]);
}

TEST(VerbsGroups, Multicast_PacketTooShort_IsDropped) {
  Member mine;
  mine.SetUp();
  mine.send("a packet");  // what comes after it lies over its bytes
  for (int i = 0; i < 2; ++i) EXPECT_EQ(mine.next().status, IBV_WC_SUCCESS);
  const int stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(stranger, 0);
  ibv_gid own{};
  ASSERT_EQ(ibv_query_gid(mine.context, 1, 1, &own), 0);
  in_addr by{};
  std::memcpy(&by, own.raw + 12, sizeof by);
  const uint8_t hops = 0;  // it stays on this host
  ASSERT_EQ(setsockopt(stranger, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by), 0);
  ASSERT_EQ(setsockopt(stranger, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(4791);
  std::memcpy(&to.sin_addr, mine.group.raw + 12, sizeof to.sin_addr);
  for (const size_t length : {0, 1, 3, 4, 12, 23})
    EXPECT_EQ(sendto(stranger, "nothing of InfiniBand's", length, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(length));
  close(stranger);
  EXPECT_EQ(ibv_destroy_ah(mine.ah), 0);
  EXPECT_EQ(mine.post_recv(mine.qp, 8, mine.memory, 128, mine.mr->lkey), 0);
  mine.send("another");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(mine.next().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(mine.got("another"));
  mine.leave();
}

}  // namespace
}  // namespace nupa::test
