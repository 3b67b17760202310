// SPDX-License-Identifier: Apache-2.0
/// Objects of the parent in a child of fork(): calls on them neither wait for the parent's threads nor change memory
/// that the parent shares with its peers. The child has devices of its own.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "../../support/soon.h"
#include "fixture.h"
#include "../../support/sanitizers.h"

namespace nupa::test {
namespace {

constexpr unsigned kForkLimitSeconds = 60;

/// Runs `body` in a child, whose exit status it returns; killed by a signal: 1000 and its number.
int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kForkLimitSeconds);  // a process that hangs is killed by it
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// A program's own objects, as a child makes them.
class Own : public VerbsPair {
 public:
  void TestBody() override {}
  void run() {
    SetUp();
    make_pair();
    ASSERT_EQ(receive(b, 1, 0, 64), 0);
    ibv_sge sge = span(128, 64);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 2, &sge)), 0);
    EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    TearDown();
  }
};

class VerbsFork : public VerbsPair {
 protected:
  /// Both ways of the pair still work, and so does the memory.
  void expect_pair_works() {
    ASSERT_EQ(receive(b, 11, 0, 64), 0);
    ibv_sge sge = span(128, 64);
    ASSERT_EQ(post(a, request(IBV_WR_SEND, 12, &sge)), 0);
    EXPECT_EQ(next().wr_id, 12u);
    const ibv_wc received = next(other_cq);
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.wr_id, 11u);
    ASSERT_EQ(post(b, remote(IBV_WR_RDMA_WRITE, 13, &sge, 256)), 0);
    EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(state_of(a), IBV_QPS_RTS);
    EXPECT_EQ(state_of(b), IBV_QPS_RTS);
  }
  /// With a completion queue of its own, whose channel has an event that nobody has taken.
  void raise_event() {
    channel = ibv_create_comp_channel(context);
    ASSERT_NE(channel, nullptr);
    event_cq = ibv_create_cq(context, kQueueLength, nullptr, channel, 0);
    ASSERT_NE(event_cq, nullptr);
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = event_cq;
    event_qp = ibv_create_qp(pd, &attr);
    connect(event_qp, event_qp);
    ASSERT_EQ(ibv_req_notify_cq(event_cq, 0), 0);
    ASSERT_EQ(post(event_qp, request(IBV_WR_RDMA_WRITE, 5, nullptr)), 0);
    ASSERT_TRUE(becomes_readable(channel));
  }
  void destroy_event_objects() {
    EXPECT_EQ(ibv_destroy_qp(event_qp), 0);
    EXPECT_EQ(ibv_destroy_cq(event_cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  }

  ibv_comp_channel* channel = nullptr;
  ibv_cq* event_cq = nullptr;
  ibv_qp* event_qp = nullptr;
};

TEST_F(VerbsFork, DestroyInAChild_LeavesTheParentsConnection) {
  make_pair();
  EXPECT_EQ(0, in_child([this] { TearDown(); }));
  expect_pair_works();
}

TEST_F(VerbsFork, DestroyInAChild_LeavesTheParentsSharedReceiveQueue) {
  ibv_srq_init_attr attr{};
  attr.attr = {8, 1, 0};
  srq = ibv_create_srq(pd, &attr);
  ASSERT_NE(srq, nullptr);
  make_pair();
  ibv_sge sge = span(0, 64);
  ibv_recv_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
  EXPECT_EQ(0, in_child([&] {
              EXPECT_NE(ibv_post_srq_recv(srq, &wr, &bad), 0);
              TearDown();
            }));
  ibv_sge out = span(128, 64);
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 1, &out)), 0);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsFork, PostInAChild_FailsAndSendsNothing) {
  make_pair();
  EXPECT_EQ(0, in_child([this] {
              ibv_sge sge = span(128, 64);
              EXPECT_EQ(post(a, request(IBV_WR_SEND, 1, &sge)), EINVAL);
              EXPECT_EQ(post(b, remote(IBV_WR_RDMA_WRITE, 2, &sge, 0)), EINVAL);
              EXPECT_EQ(receive(b, 3, 0, 64), EINVAL);
              EXPECT_TRUE(stays_empty(cq));
            }));
  EXPECT_TRUE(stays_empty(other_cq));
  expect_pair_works();
}

TEST_F(VerbsFork, CompletionOfTheParent_IsNotTakenByAChild) {
  make_pair();
  ibv_sge sge = span(128, 64);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, &sge, 256)), 0);
  ASSERT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 2, &sge, 256)), 0);
  EXPECT_EQ(0, in_child([this] { EXPECT_TRUE(stays_empty(cq)); }));
  EXPECT_EQ(next().wr_id, 1u);
  EXPECT_EQ(next().wr_id, 2u);
}

TEST_F(VerbsFork, EventOfTheParent_IsNotTakenByAChild) {
  ASSERT_NO_FATAL_FAILURE(raise_event());
  EXPECT_EQ(0, in_child([this] {
              ibv_cq* reported_cq = nullptr;
              void* reported_context = nullptr;
              EXPECT_EQ(ibv_get_cq_event(channel, &reported_cq, &reported_context), -1);
              EXPECT_EQ(errno, ENODEV);
              EXPECT_EQ(ibv_req_notify_cq(event_cq, 0), 0);
              EXPECT_TRUE(stays_empty(event_cq));
              destroy_event_objects();
            }));
  ASSERT_TRUE(becomes_readable(channel));
  ibv_cq* reported_cq = nullptr;
  void* reported_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel, &reported_cq, &reported_context), 0);
  EXPECT_EQ(reported_cq, event_cq);
  EXPECT_EQ(next(event_cq).wr_id, 5u);
  // The parent has one event, as before.
  pollfd ready{channel->fd, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  ibv_ack_cq_events(reported_cq, 1);
  destroy_event_objects();
}

TEST_F(VerbsFork, EventThatTheParentHasNotAcknowledged_DoesNotHoldUpAChild) {
  ASSERT_NO_FATAL_FAILURE(raise_event());
  ibv_cq* reported_cq = nullptr;
  void* reported_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel, &reported_cq, &reported_context), 0);
  EXPECT_EQ(0, in_child([this] { destroy_event_objects(); }));
  ibv_ack_cq_events(reported_cq, 1);
  destroy_event_objects();
}

TEST_F(VerbsFork, CallsOnInheritedObjects_ReturnEnodev) {
  ibv_alloc_dm_attr dm_attr{4096, 0, 0};
  ibv_dm* const dm = ibv_alloc_dm(context, &dm_attr);
  ASSERT_NE(dm, nullptr);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {8, 1, 0};
  ibv_srq* const shared = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(shared, nullptr);
  make_pair();
  EXPECT_EQ(0, in_child([&] {
              const auto refuses = [](const void* made) {
                return made == nullptr && std::exchange(errno, 0) == ENODEV;
              };
              ibv_qp_init_attr attr = init();
              ibv_ah_attr way = path();
              ibv_xrcd_init_attr xrcd{};
              xrcd.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
              xrcd.fd = -1;
              xrcd.oflags = O_CREAT;
              EXPECT_TRUE(refuses(ibv_alloc_pd(context)));
              EXPECT_TRUE(refuses(ibv_reg_mr(pd, memory, 64, 0)));
              EXPECT_TRUE(refuses(ibv_create_cq(context, 8, nullptr, nullptr, 0)));
              EXPECT_TRUE(refuses(ibv_create_comp_channel(context)));
              EXPECT_TRUE(refuses(ibv_create_qp(pd, &attr)));
              EXPECT_TRUE(refuses(ibv_create_srq(pd, &srq_attr)));
              EXPECT_TRUE(refuses(ibv_create_ah(pd, &way)));
              EXPECT_TRUE(refuses(ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
              ibv_dm* const own_dm = ibv_alloc_dm(context, &dm_attr);
              EXPECT_NE(own_dm, nullptr) << "memory of the child's own";
              EXPECT_EQ(own_dm == nullptr ? 0 : ibv_free_dm(own_dm), 0);
              EXPECT_TRUE(refuses(ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)));
              EXPECT_TRUE(refuses(ibv_alloc_null_mr(pd)));
              EXPECT_TRUE(refuses(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, context->cmd_fd, 0)));
              EXPECT_TRUE(refuses(ibv_open_xrcd(context, &xrcd)));
              EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
              EXPECT_EQ(errno, ENODEV);
              ibv_sge advised = span(0, 64);
              EXPECT_EQ(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &advised, 1), ENODEV);
              ibv_srq_attr limit{8, 1, 2};
              EXPECT_EQ(ibv_modify_srq(shared, &limit, IBV_SRQ_LIMIT), ENODEV);
              EXPECT_EQ(ibv_query_srq(shared, &limit), ENODEV);
              EXPECT_EQ(ibv_attach_mcast(a, &way.grh.dgid, 0), ENODEV);
              EXPECT_EQ(ibv_detach_mcast(a, &way.grh.dgid, 0), ENODEV);
              EXPECT_TRUE(refuses(ibv_import_pd(context, pd->handle)));
              EXPECT_TRUE(refuses(ibv_import_mr(pd, mr->handle)));
              EXPECT_TRUE(refuses(ibv_import_dm(context, dm->handle)));
              EXPECT_EQ(ibv_import_device(context->cmd_fd), nullptr);
              EXPECT_EQ(move(a, IBV_QPS_ERR), ENODEV);
              ibv_qp_attr asked{};
              EXPECT_EQ(ibv_query_qp(a, &asked, IBV_QP_STATE, &attr), ENODEV);
              EXPECT_EQ(ibv_resize_cq(cq, 8), ENODEV);
              ibv_async_event event;
              EXPECT_EQ(ibv_get_async_event(context, &event), -1);
              EXPECT_EQ(errno, ENODEV);
              EXPECT_EQ(ibv_destroy_srq(shared), 0);
              EXPECT_EQ(ibv_free_dm(dm), 0);
            }));
  expect_pair_works();
  EXPECT_EQ(ibv_destroy_srq(shared), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(VerbsFork, ChildThatOpensTheDevice_HasItsOwn) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  make_pair();
  EXPECT_EQ(0, in_child([this] {
              Own own;
              own.run();
              TearDown();
              Own another;
              another.run();
            }));
  expect_pair_works();
}

/// Threads of the parent hold one lock or the other while it forks.
TEST_F(VerbsFork, ThreadsInTheMiddleOfCalls_DoNotHoldUpChildren) {
  constexpr int kForks = 100;
  make_pair();
  raise_event();
  std::atomic<bool> ends{false};
  std::atomic<int> turns[3]{};
  const auto again_and_again = [&](std::atomic<int>& count, const std::function<void()>& turn) {
    while (!ends) {
      turn();
      ++count;
    }
  };
  std::thread makes([&] {
    again_and_again(turns[0], [&] {
      ibv_cq* const made = ibv_create_cq(context, 1, nullptr, channel, 0);
      EXPECT_NE(made, nullptr);
      EXPECT_EQ(ibv_destroy_cq(made), 0);
    });
  });
  std::thread asks([&] { again_and_again(turns[1], [&] { EXPECT_EQ(state_of(b), IBV_QPS_RTS); }); });
  std::thread polls([&] {
    again_and_again(turns[2], [&] {
      EXPECT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, nullptr, 0)), 0);
      EXPECT_EQ(next().status, IBV_WC_SUCCESS);
    });
  });
  for (int i = 0; i < kForks && !HasFailure(); ++i) {
    const int before[3] = {turns[0], turns[1], turns[2]};
    EXPECT_EQ(0, in_child([this] {
                ibv_wc wc;
                EXPECT_EQ(post(a, remote(IBV_WR_RDMA_WRITE, 1, nullptr, 0)), EINVAL);
                for (int polled = 0; polled < 10; ++polled) EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
                EXPECT_EQ(move(b, IBV_QPS_ERR), ENODEV);
                destroy_event_objects();
                TearDown();
              }));
    for (int thread = 0; thread < 3; ++thread)
      EXPECT_TRUE(soon([&] { return turns[thread] != before[thread]; })) << thread;
  }
  ends = true;
  makes.join();
  asks.join();
  polls.join();
  expect_pair_works();
  ibv_cq* reported_cq = nullptr;
  void* reported_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel, &reported_cq, &reported_context), 0);
  ibv_ack_cq_events(reported_cq, 1);
  destroy_event_objects();
}

/// Of this process's descriptors.
int count_open(const std::string& path) {
  int count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(each.path(), gone) == path ? 1 : 0;
  }
  return count;
}

TEST(VerbsForkOpen, ForkWhileAThreadWaitsForTheDirectory_LetsTheChildOpen) {
  if (test::kThreadSanitizer) GTEST_SKIP() << test::kNoThreadInChild;
  std::string folder = "/tmp/nupa-fork-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const char* const usual = std::getenv("NUPA_RUNTIME_DIR");
  const std::string before = usual == nullptr ? "" : usual;
  setenv("NUPA_RUNTIME_DIR", folder.c_str(), 1);
  const int lock = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const auto open_and_close = [] {
    ibv_device** const list = ibv_get_device_list(nullptr);
    ibv_context* const opened = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    return opened != nullptr && ibv_close_device(opened) == 0;
  };
  std::atomic<bool> opened{false};
  std::thread opens([&] { opened = open_and_close(); });
  // Its descriptors of the directory: it is in the middle of the open.
  EXPECT_TRUE(soon([&] { return count_open(folder) >= 3; }));
  const pid_t child = fork();
  if (child == 0) {
    alarm(kForkLimitSeconds);
    _exit(open_and_close() ? 0 : 1);
  }
  EXPECT_EQ(flock(lock, LOCK_UN), 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  opens.join();
  EXPECT_TRUE(opened);
  close(lock);
  if (usual == nullptr)
    unsetenv("NUPA_RUNTIME_DIR");
  else
    setenv("NUPA_RUNTIME_DIR", before.c_str(), 1);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace
}  // namespace nupa::test
