// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Queue pairs over shared memory, with the core's objects behind them in reach: for rules that no completion shows.
#include <gtest/gtest.h>
#include <nupa/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "../../support/soon.h"
#include "core/cq.h"
#include "core/qp.h"
#include "transport/shm/shm_transport.h"

namespace nupa::core {

constexpr uint32_t kEveryRight =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

using test::soon;

/// How one end is connected, and how long it tries.
struct Way {
  uint8_t timeout = 14;
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 1;
  uint32_t rights = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
};

/// One process's open device with a completion queue and two pages of memory.
class ShmEnd {
 public:
  static constexpr size_t kBytes = 8192;

  bool open(const char* transport = "shm") {
    setenv("NUPA_TRANSPORT", transport, 1);
    auto opened = open_device("nupa0");
    unsetenv("NUPA_TRANSPORT");
    if (!opened) return false;
    handle = std::move(*opened);
    pd = std::move(*handle->alloc_pd());
    cq = make_cq(64);
    region = std::move(*handle->alloc_mr(*pd, kBytes, kEveryRight));
    memory = static_cast<char*>(region->addr());
    return true;
  }
  void close() {
    qps.clear();
    srqs.clear();
    region.reset();
    cqs.clear();
    cq = nullptr;
    pd.reset();
    peers_.reset();
    handle.reset();
  }

  DeviceImpl& device() { return static_cast<DeviceImpl&>(*handle); }
  Process& process() { return device().process(); }
  /// As the service thread calls them.
  host::NodeEvents& events() { return process(); }
  const shm::Tables& tables() { return process().tables(); }
  shm_transport::ShmTransport& shm() {
    return static_cast<shm_transport::ShmTransport&>(*process().transports().find("shm"));
  }
  shm_transport::Peers& peers() {
    if (!peers_) peers_.emplace(process());
    return *peers_;
  }
  shm::QpShared& shared(Qp& qp) { return tables().qp[qp.index()]; }

  /// The queue's ring, as another process writes to it. None: its slots are not in the heap.
  std::optional<shm::CompletionRing> ring_of(Cq& queue) {
    shm::CqShared& its = tables().cq[queue.index()];
    const uint64_t where = its.where.load();
    const uint32_t log2 = shm::ring_log2(where);
    const auto slots = process().node().self().heap(shm::ring_offset(where), shm::CompletionRing::bytes_for(log2));
    if (!slots) return std::nullopt;
    return shm::CompletionRing(&its, *slots, log2, shm::ring_generation(where));
  }
  Cq* make_cq(uint32_t entries, CompletionChannel* channel = nullptr) {
    cqs.push_back(std::move(*handle->create_cq({.entries = entries, .channel = channel})));
    return static_cast<Cq*>(cqs.back().get());
  }
  /// As the service thread does when the process of `dead_tag` has exited.
  void recover(Srq& srq, uint32_t dead_tag) {
    srq.recover(dead_tag, [this](uint32_t qp_index, uint64_t intent) {
      const Qp* const qp = process().objects().qps().at(qp_index);
      return qp != nullptr && qp->recv_cq()->completed(intent);
    });
  }
  Srq* make_srq(uint32_t max_wr) {
    srqs.push_back(std::move(*handle->create_srq(*pd, {.max_wr = max_wr})));
    return static_cast<Srq*>(srqs.back().get());
  }
  Qp* make_qp(QpType type = QpType::kRc, Srq* srq = nullptr, Cq* queue = nullptr) {
    if (queue == nullptr) queue = cq;
    QpOptions options{.type = type, .send_cq = queue, .recv_cq = queue, .srq = srq, .cap = {8, 8, 4, 4, 64}};
    auto made = handle->create_qp(pd.get(), options);
    if (!made) return nullptr;
    qps.push_back(std::move(*made));
    return static_cast<Qp*>(qps.back().get());
  }

  static int to_init(Qp& qp, const Way& way = {}) {
    QpAttr attr;
    attr.state = QpState::kInit;
    attr.access_flags = way.rights;
    attr.qkey = kQkey;
    const bool datagram = qp.type() == QpType::kUd;
    return qp.modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort |
                               (datagram ? qp_attr::kQkey : qp_attr::kAccessFlags));
  }
  int to_rtr(Qp& qp, uint32_t peer, const Way& way = {}) {
    QpAttr attr;
    attr.state = QpState::kRtr;
    if (qp.type() == QpType::kUd) return qp.modify(attr, qp_attr::kState);
    attr.av.is_global = true;
    attr.av.dgid = peer_gid == Gid{} ? own_gid() : peer_gid;
    attr.av.sgid_index = 1;
    attr.path_mtu = Mtu::k4096;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = way.min_rnr_timer;
    const uint32_t mask = qp_attr::kState | qp_attr::kAv | qp_attr::kPathMtu | qp_attr::kDestQpn | qp_attr::kRqPsn;
    const bool reliable = qp.type() == QpType::kRc;
    return qp.modify(attr, reliable ? mask | qp_attr::kMaxDestRdAtomic | qp_attr::kMinRnrTimer : mask);
  }
  static int to_rts(Qp& qp, const Way& way = {}) {
    QpAttr attr;
    attr.state = QpState::kRts;
    attr.timeout = way.timeout;
    attr.retry_cnt = way.retry_cnt;
    attr.rnr_retry = way.rnr_retry;
    attr.max_rd_atomic = 4;
    const uint32_t mask = qp_attr::kState | qp_attr::kSqPsn;
    const uint32_t reliable = qp_attr::kTimeout | qp_attr::kRetryCnt | qp_attr::kRnrRetry | qp_attr::kMaxQpRdAtomic;
    return qp.modify(attr, qp.type() == QpType::kRc ? mask | reliable : mask);
  }
  /// From RESET to RTS, towards `peer`.
  int connect(Qp& qp, uint32_t peer, const Way& way = {}) {
    int error = to_init(qp, way);
    if (error == 0) error = to_rtr(qp, peer, way);
    return error != 0 ? error : to_rts(qp, way);
  }
  static int move(Qp& qp, QpState state) {
    QpAttr attr;
    attr.state = state;
    return qp.modify(attr, qp_attr::kState);
  }
  static QpState state_of(Qp& qp) {
    QpAttr attr;
    qp.query(&attr, nullptr);
    return attr.state;
  }

  /// As its peers see it; a thread that changes it does not hold this up.
  QpState state_of_shared(Qp& qp) { return shm::state_of(shared(qp).state.load()); }

  Sge span(size_t offset, uint32_t length) {
    return {reinterpret_cast<uint64_t>(memory + offset), length, region->lkey()};
  }
  /// Eight bytes of the beginning, to `offset` of this process's own memory.
  int write(Qp& qp, uint64_t wr_id, size_t offset = 4096) {
    return write(qp, wr_id, reinterpret_cast<uint64_t>(memory + offset), region->rkey());
  }
  int write(Qp& qp, uint64_t wr_id, uint64_t remote_addr, uint32_t rkey) {
    const Sge sge = span(0, 8);
    SendWr wr{.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWrite};
    wr.flags = send_flag::kSignaled;
    wr.rkey = rkey;
    wr.remote_addr = remote_addr;
    return qp.post_send(wr);
  }
  int send(Qp& qp, uint64_t wr_id) {
    const Sge sge = span(0, 8);
    SendWr wr{.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.flags = send_flag::kSignaled;
    return qp.post_send(wr);
  }
  Gid own_gid() { return handle->query_gid(1, 1)->gid; }
  /// To a host or a group, from this host's address.
  std::unique_ptr<AddressHandle> make_ah(const Gid& to) {
    AddressVector vector;
    vector.is_global = true;
    vector.sgid_index = 1;
    vector.dgid = to;
    return std::move(*handle->create_ah(*pd, vector));
  }
  /// Eight bytes of the beginning as a datagram.
  int send_to(Qp& qp, const AddressHandle* ah, uint32_t number, uint64_t wr_id = 1,
              uint32_t flags = send_flag::kSignaled) {
    const Sge sge = span(0, 8);
    SendWr wr{.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.flags = flags;
    wr.ah = ah;
    wr.remote_qpn = number;
    wr.remote_qkey = kQkey;
    return qp.post_send(wr);
  }
  template <class Queue>
  int receive(Queue& queue, uint64_t wr_id, size_t offset = 4096) {
    const Sge sge = span(offset, 64);
    return queue.post_recv({wr_id, &sge, 1});
  }
  /// From now on only the test tries what waits on `qp`, by Qp::progress().
  void try_by_hand(Qp& qp) {
    process().pending().remove(qp);
    // A turn of the service thread that has it still on its list holds the objects' mutex, which this needs.
    make_cq(1);
    cqs.pop_back();
  }
  /// The next completion; kGeneralErr: none came.
  WorkCompletion next(Cq* from = nullptr) {
    WorkCompletion wc{};
    wc.status = WcStatus::kGeneralErr;
    Cq& queue = from == nullptr ? *cq : *from;
    soon([&] { return queue.poll(&wc, 1) == 1; });
    return wc;
  }
  bool is_empty(Cq* from = nullptr) {
    WorkCompletion wc;
    return (from == nullptr ? *cq : *from).poll(&wc, 1) == 0;
  }

  static constexpr uint32_t kQkey = 0x11;
  std::unique_ptr<Device> handle;
  std::unique_ptr<ProtectionDomain> pd;
  std::unique_ptr<MemoryRegion> region;
  std::vector<std::unique_ptr<CompletionQueue>> cqs;
  std::vector<std::unique_ptr<SharedReceiveQueue>> srqs;
  std::vector<std::unique_ptr<QueuePair>> qps;
  Cq* cq = nullptr;
  char* memory = nullptr;
  Gid peer_gid{};  ///< zeros: of this host

 private:
  std::optional<shm_transport::Peers> peers_;
};

/// Both ends in this process.
class ShmTest : public ::testing::Test, protected ShmEnd {
 protected:
  void SetUp() override { ASSERT_TRUE(open()); }
  void TearDown() override { close(); }
  /// `a` and `b` connected to each other.
  void make_pair(QpType type = QpType::kRc, const Way& way = {}) {
    a = make_qp(type);
    b = make_qp(type);
    ASSERT_NE(b, nullptr);
    ASSERT_EQ(connect(*a, b->number(), way), 0);
    ASSERT_EQ(connect(*b, a->number(), way), 0);
  }
  Qp* a = nullptr;
  Qp* b = nullptr;
};

/// What each process sends to the other before they connect.
struct ShmAddress {
  uint32_t qp_num;
  uint32_t rkey;
  uint64_t addr;
  uint32_t index;  ///< of what the test is about
};

/// Two pipes to the other process.
struct ShmLine {
  int in = -1;
  int out = -1;
  template <class Value>
  bool give(const Value& value) const {
    return ::write(out, &value, sizeof value) == sizeof value;
  }
  /// False: the other process has exited.
  template <class Value>
  bool get(Value* value) const {
    return ::read(in, value, sizeof *value) == sizeof *value;
  }
  bool wait() const {
    char byte;
    return get(&byte);
  }
  bool go() const { return give('!'); }
};

/// Connects a queue pair of this process with one of the other, which does the same. False: it has exited.
inline bool exchange_and_connect(ShmEnd& end, const ShmLine& line, Qp& qp, ShmAddress* peer, uint32_t index = 0) {
  const ShmAddress mine{qp.number(), end.region->rkey(), reinterpret_cast<uint64_t>(end.memory), index};
  return line.give(mine) && line.get(peer) && end.connect(qp, peer->qp_num) == 0 && line.go() && line.wait();
}

/// A second process with an end of its own, made before this one opens the device. Its status is 0 if `play` says so.
class ShmProcesses : public ::testing::Test {
 protected:
  using Play = bool(ShmEnd& end, const ShmLine& line);
  void start(Play* play, const char* transport = "shm") {
    ASSERT_NO_FATAL_FAILURE(start_process(play, transport, &child, &line));
    ASSERT_TRUE(end.open(transport));
  }
  static void start_process(Play* play, const char* transport, pid_t* process, ShmLine* to) {
    int down[2], up[2];
    ASSERT_EQ(pipe(down), 0);
    ASSERT_EQ(pipe(up), 0);
    *process = fork();
    ASSERT_GE(*process, 0);
    if (*process == 0) {
      ::close(down[1]);
      ::close(up[0]);
      alarm(60);
      ShmEnd own;
      const bool good = own.open(transport) && play(own, {down[0], up[1]});
      own.close();
      _exit(good && !HasFailure() ? 0 : 1);
    }
    ::close(down[0]);
    ::close(up[1]);
    *to = {up[0], down[1]};
  }
  void kill_child() {
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    child = 0;
  }
  /// The child ends by itself, with what its play came to.
  void expect_good_end() {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    child = 0;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  void TearDown() override {
    for (const int fd : {line.in, line.out})
      if (fd >= 0) ::close(fd);
    if (child > 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    end.close();
  }

  ShmEnd end;
  ShmLine line;
  pid_t child = 0;
};

}  // namespace nupa::core
