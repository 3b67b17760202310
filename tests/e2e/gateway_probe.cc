// SPDX-License-Identifier: Apache-2.0
/// A server and a client of librdmacm that check data and statuses; run_gateway.py builds them and puts a gateway
/// between them. Both map FILE, so the client sees the server's memory without the network: what a completion promises
/// must be there when the completion is polled.
///
///   gateway_probe server ADDRESS PORT FILE     one connection after the other, until it is killed
///   gateway_probe client ADDRESS PORT FILE CASE...   "PASS CASE" or "FAIL CASE why" for each
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMemory = 8u << 20;     // of the server
constexpr size_t kReceiveAt = 4u << 20;  // receives lie there, one behind the other
constexpr size_t kReceive = 128u << 10;
constexpr int kReceives = 16;
constexpr int kDepth = 256;
constexpr uint32_t kMagic = 0x4e555041;
constexpr int kLimitSeconds = 30;

struct Hello {  // private data of the REQ
  uint32_t magic;
  char name[12];
};
struct Memory {  // private data of the REP
  uint32_t magic;
  uint32_t rkey;
  uint32_t read_only;
  uint32_t pad;
  uint64_t address;
};

[[noreturn]] void die(const std::string& what) {
  std::printf("FAIL probe %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

uint8_t* map_file(const char* path) {
  const int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, kMemory) != 0) die("open");
  void* const at = mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) die("mmap");
  close(fd);
  return static_cast<uint8_t*>(at);
}

uint8_t pattern(size_t i, uint32_t seed) { return static_cast<uint8_t>(i * 31 + i / 251 + seed); }

/// An id with its queue pair.
struct End {
  rdma_cm_id* id = nullptr;
  ibv_cq* cq = nullptr;

  void make_queue_pair() {
    cq = ibv_create_cq(id->verbs, 2 * kDepth, nullptr, nullptr, 0);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = {kDepth, kReceives, 1, 1, 64};
    attr.qp_type = IBV_QPT_RC;
    attr.sq_sig_all = 1;
    if (cq == nullptr || rdma_create_qp(id, id->pd, &attr) != 0) die("rdma_create_qp");
  }
  void destroy() {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    if (cq != nullptr) ibv_destroy_cq(cq);
    rdma_destroy_id(id);
  }
  /// False: none came in time.
  bool poll(ibv_wc* wc, int seconds = kLimitSeconds) const {
    for (const auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end;)
      if (ibv_poll_cq(cq, 1, wc) == 1) return true;
    return false;
  }
};

// ---- server ---------------------------------------------------------------------------------------------------------

uint8_t* memory;

void post_receive(End& end, ibv_mr* mr, int slot, size_t length = kReceive) {
  ibv_sge sge{reinterpret_cast<uint64_t>(memory + kReceiveAt + static_cast<size_t>(slot) * kReceive),
              static_cast<uint32_t>(length), mr->lkey};
  ibv_recv_wr wr{static_cast<uint64_t>(slot), nullptr, &sge, 1};
  ibv_recv_wr* bad;
  if (ibv_post_recv(end.id->qp, &wr, &bad) != 0) die("ibv_post_recv");
}

void serve(rdma_event_channel* channel) {
  std::map<rdma_cm_id*, End> ends;
  std::map<rdma_cm_id*, std::string> names;
  std::map<rdma_cm_id*, std::vector<ibv_mr*>> regions;
  for (;;) {
    rdma_cm_event* event;
    if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
    rdma_cm_id* const id = event->id;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      Hello hello{};
      if (event->param.conn.private_data_len >= sizeof hello)
        std::memcpy(&hello, event->param.conn.private_data, sizeof hello);
      rdma_ack_cm_event(event);
      const std::string name = hello.magic == kMagic ? hello.name : "?";
      if (name == "reject") {
        const char why[] = "not today";
        rdma_reject(id, why, sizeof why);
        continue;
      }
      End& end = ends[id];
      end.id = id;
      names[id] = name;
      end.make_queue_pair();
      ibv_mr* const mr = ibv_reg_mr(
          id->pd, memory, kMemory,
          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
      ibv_mr* const read_only = ibv_reg_mr(id->pd, memory, kMemory, IBV_ACCESS_REMOTE_READ);
      regions[id] = {mr, read_only};
      if (name != "rnr" && name != "late")
        for (int i = 0; i < kReceives; ++i) post_receive(end, mr, i, name == "short" ? 100 : kReceive);
      const Memory shown{kMagic, mr->rkey, read_only->rkey, 0, reinterpret_cast<uint64_t>(memory)};
      rdma_conn_param param{};
      param.private_data = &shown;
      param.private_data_len = sizeof shown;
      param.responder_resources = param.initiator_depth = 8;
      param.retry_count = 7;
      param.rnr_retry_count = name == "rnr" ? 2 : 7;
      if (rdma_accept(id, &param) != 0) die("rdma_accept");
      continue;
    }
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_ESTABLISHED && names[id] == "late") {
      std::this_thread::sleep_for(std::chrono::seconds(2));  // sleep: the sender waits as long for a receive
      for (int i = 0; i < kReceives; ++i) post_receive(ends[id], regions[id][0], i);
    }
    if (type == RDMA_CM_EVENT_ESTABLISHED && names[id] == "leave") rdma_disconnect(id);
    if (type == RDMA_CM_EVENT_ESTABLISHED && names[id] == "answer") {
      // Sends as many messages as it has received, each with what it got.
      End& end = ends[id];
      for (int i = 0; i < kReceives; ++i) {
        ibv_wc wc;
        do {
          if (!end.poll(&wc)) die("the server's receive");
        } while ((wc.opcode & IBV_WC_RECV) == 0);
        ibv_sge sge{reinterpret_cast<uint64_t>(memory + kReceiveAt + wc.wr_id * kReceive), wc.byte_len,
                    regions[id][0]->lkey};
        ibv_send_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND_WITH_IMM;
        wr.imm_data = wc.imm_data;
        ibv_send_wr* bad;
        if (ibv_post_send(end.id->qp, &wr, &bad) != 0) die("ibv_post_send");
      }
    }
    if (type == RDMA_CM_EVENT_DISCONNECTED && ends.count(id) != 0) {
      rdma_disconnect(id);
      for (ibv_mr* const mr : regions[id]) ibv_dereg_mr(mr);
      ends[id].destroy();
      ends.erase(id);
      names.erase(id);
      regions.erase(id);
    }
  }
}

// ---- client ---------------------------------------------------------------------------------------------------------

struct Client : End {
  rdma_event_channel* channel = nullptr;
  Memory server{};
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kMemory);
  ibv_mr* mr = nullptr;
  std::string why;   ///< the first thing that was wrong
  int status = 0;    ///< of the last event
  std::string data;  ///< its private data

  bool wrong(const std::string& what) {
    if (why.empty()) why = what;
    return false;
  }
  bool expect(rdma_cm_event_type wanted) {
    rdma_cm_event* event;
    if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
    const rdma_cm_event_type type = event->event;
    status = event->status;
    if ((type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_REJECTED) &&
        event->param.conn.private_data != nullptr) {
      data.assign(static_cast<const char*>(event->param.conn.private_data), event->param.conn.private_data_len);
      if (data.size() >= sizeof server) std::memcpy(&server, data.data(), sizeof server);
    }
    rdma_ack_cm_event(event);
    return type == wanted || wrong(std::string(rdma_event_str(type)) + " instead of " + rdma_event_str(wanted));
  }
  bool connect(const sockaddr* address, const std::string& name, rdma_cm_event_type wanted) {
    channel = rdma_create_event_channel();
    if (channel == nullptr || rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) die("rdma_create_id");
    if (rdma_resolve_addr(id, nullptr, const_cast<sockaddr*>(address), 2000) != 0) die("rdma_resolve_addr");
    if (!expect(RDMA_CM_EVENT_ADDR_RESOLVED)) return false;
    if (rdma_resolve_route(id, 2000) != 0) die("rdma_resolve_route");
    if (!expect(RDMA_CM_EVENT_ROUTE_RESOLVED)) return false;
    make_queue_pair();
    mr = ibv_reg_mr(id->pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
    Hello hello{kMagic, {}};
    std::strncpy(hello.name, name.c_str(), sizeof hello.name - 1);
    rdma_conn_param param{};
    param.private_data = &hello;
    param.private_data_len = sizeof hello;
    param.responder_resources = param.initiator_depth = 8;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    if (rdma_connect(id, &param) != 0) die("rdma_connect");
    return expect(wanted);
  }
  void close() {
    if (id->qp != nullptr) rdma_disconnect(id);
    if (mr != nullptr) ibv_dereg_mr(mr);
    destroy();
    rdma_destroy_event_channel(channel);
  }
  void post(ibv_wr_opcode opcode, size_t at, size_t length, uint64_t remote = 0, uint32_t rkey = 0, uint32_t imm = 0,
            uint64_t compare_add = 0, uint64_t swap = 0) {
    ibv_sge sge{reinterpret_cast<uint64_t>(buffer.data() + at), static_cast<uint32_t>(length), mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = length > 0 ? 1 : 0;
    wr.opcode = opcode;
    wr.imm_data = imm;
    wr.wr.rdma.remote_addr = server.address + remote;
    wr.wr.rdma.rkey = rkey;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {server.address + remote, compare_add, swap, rkey};
    ibv_send_wr* bad;
    if (ibv_post_send(id->qp, &wr, &bad) != 0) die("ibv_post_send");
  }
  bool completes(ibv_wc_status wanted, const std::string& what) {
    ibv_wc wc;
    if (!poll(&wc)) return wrong(what + ": no completion");
    return wc.status == wanted ||
           wrong(what + ": " + ibv_wc_status_str(wc.status) + " instead of " + ibv_wc_status_str(wanted));
  }
  void fill(size_t at, size_t length, uint32_t seed) {
    for (size_t i = 0; i < length; ++i) buffer[at + i] = pattern(i, seed);
  }
  bool is_at(const uint8_t* bytes, size_t length, uint32_t seed, const std::string& what) {
    for (size_t i = 0; i < length; ++i)
      if (bytes[i] != pattern(i, seed)) return wrong(what + ": byte " + std::to_string(i) + " is wrong");
    return true;
  }

  // The server's memory is `memory`: each completion is checked against it at once.
  void check_writes() {
    std::mt19937 random(1);
    for (uint32_t i = 0; i < 300 && why.empty(); ++i) {
      const size_t length = i % 10 == 9 ? 1 + random() % 300000 : random() % 5000;
      const size_t to = random() % (kReceiveAt - 300001);
      fill(0, length, i);
      post(IBV_WR_RDMA_WRITE, 0, length, to, server.rkey);
      completes(IBV_WC_SUCCESS, "WRITE") && is_at(memory + to, length, i, "WRITE of " + std::to_string(length));
    }
    fill(0, 3u << 20, 7);
    post(IBV_WR_RDMA_WRITE, 0, 3u << 20, 5, server.rkey);
    completes(IBV_WC_SUCCESS, "WRITE of 3 MiB") && is_at(memory + 5, 3u << 20, 7, "WRITE of 3 MiB");
    // Many at once, in order: the last one to a place wins.
    for (uint32_t i = 0; i < kDepth; ++i) {
      fill(4096 * i, 4096, i);
      post(IBV_WR_RDMA_WRITE, 4096 * i, 4096, 8192 * (i % 16), server.rkey);
    }
    for (uint32_t i = 0; i < kDepth; ++i) completes(IBV_WC_SUCCESS, "pipelined WRITE");
    for (uint32_t i = 0; i < 16; ++i) is_at(memory + 8192 * i, 4096, kDepth - 16 + i, "pipelined WRITE");
  }
  void check_reads() {
    std::mt19937 random(2);
    for (size_t i = 0; i < kReceiveAt; ++i) memory[i] = pattern(i, 3);
    for (uint32_t i = 0; i < 200 && why.empty(); ++i) {
      const size_t length = i % 10 == 9 ? random() % 300000 : random() % 5000;
      std::memset(buffer.data(), 0, length);
      post(IBV_WR_RDMA_READ, 0, length, 0, server.rkey);
      completes(IBV_WC_SUCCESS, "READ") && is_at(buffer.data(), length, 3, "READ of " + std::to_string(length));
    }
    std::memset(buffer.data(), 0, 3u << 20);
    post(IBV_WR_RDMA_READ, 0, 3u << 20, 0, server.rkey);
    completes(IBV_WC_SUCCESS, "READ of 3 MiB") && is_at(buffer.data(), 3u << 20, 3, "READ of 3 MiB");
    for (uint32_t i = 0; i < 64; ++i) post(IBV_WR_RDMA_READ, 10000 * i, 10000, 0, server.rkey);
    for (uint32_t i = 0; i < 64; ++i) completes(IBV_WC_SUCCESS, "pipelined READ");
    for (uint32_t i = 0; i < 64; ++i) is_at(buffer.data() + 10000 * i, 10000, 3, "pipelined READ");
    // A READ sees the WRITEs before it.
    for (uint32_t i = 0; i < 50; ++i) {
      fill(0, 3000, i);
      post(IBV_WR_RDMA_WRITE, 0, 3000, 64, server.rkey);
      post(IBV_WR_RDMA_READ, 1u << 20, 3000, 64, server.rkey);
      completes(IBV_WC_SUCCESS, "WRITE before READ");
      completes(IBV_WC_SUCCESS, "READ after WRITE");
      is_at(buffer.data() + (1u << 20), 3000, i, "READ after WRITE");
    }
  }
  uint64_t word(size_t at) const {
    uint64_t value;
    std::memcpy(&value, buffer.data() + at, sizeof value);
    return value;
  }
  void check_atomics() {
    uint64_t value = 1000;
    std::memcpy(memory + 64, &value, sizeof value);
    for (uint64_t i = 0; i < 100; ++i) {
      post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 64, server.rkey, 0, 3);
      if (completes(IBV_WC_SUCCESS, "FETCH_ADD") && word(0) != 1000 + 3 * i) wrong("FETCH_ADD found another value");
    }
    for (uint64_t i = 0; i < 32; ++i) post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8 * i, 8, 64, server.rkey, 0, 1);
    for (uint64_t i = 0; i < 32; ++i) completes(IBV_WC_SUCCESS, "pipelined FETCH_ADD");
    for (uint64_t i = 0; i < 32; ++i)
      if (word(8 * i) != 1300 + i) wrong("a pipelined FETCH_ADD found " + std::to_string(word(8 * i)));
    post(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, 64, server.rkey, 0, 1332, 5);
    if (completes(IBV_WC_SUCCESS, "CMP_SWAP") && word(0) != 1332) wrong("CMP_SWAP found another value");
    post(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, 64, server.rkey, 0, 1332, 6);
    if (completes(IBV_WC_SUCCESS, "CMP_SWAP") && word(0) != 5) wrong("CMP_SWAP swapped although the value differs");
    std::memcpy(&value, memory + 64, sizeof value);
    if (value != 5) wrong("the word is " + std::to_string(value));
  }
  void check_sends() {
    static constexpr size_t kSizes[] = {0, 1, 64, 1000, 4096, 4097, 65536, 100000, kReceive};
    int slot = 0;
    for (const size_t length : kSizes) {
      fill(0, length, static_cast<uint32_t>(slot));
      post(IBV_WR_SEND, 0, length);
      completes(IBV_WC_SUCCESS, "SEND") && is_at(memory + kReceiveAt + static_cast<size_t>(slot) * kReceive, length,
                                                 static_cast<uint32_t>(slot), "SEND of " + std::to_string(length));
      ++slot;
    }
    fill(0, 500, 99);
    post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 500, 100, server.rkey, 5);
    completes(IBV_WC_SUCCESS, "WRITE_WITH_IMM") && is_at(memory + 100, 500, 99, "WRITE_WITH_IMM");
    post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, server.rkey, 6);
    completes(IBV_WC_SUCCESS, "empty WRITE_WITH_IMM");
    post(IBV_WR_RDMA_WRITE, 0, 0, 0, server.rkey);
    completes(IBV_WC_SUCCESS, "empty WRITE");
    post(IBV_WR_RDMA_READ, 0, 0, 0, server.rkey);
    completes(IBV_WC_SUCCESS, "empty READ");
  }
  void check_answers() {
    for (int i = 0; i < kReceives; ++i) {
      ibv_sge sge{reinterpret_cast<uint64_t>(buffer.data() + kReceiveAt + static_cast<size_t>(i) * kReceive), kReceive,
                  mr->lkey};
      ibv_recv_wr wr{static_cast<uint64_t>(i), nullptr, &sge, 1};
      ibv_recv_wr* bad;
      if (ibv_post_recv(id->qp, &wr, &bad) != 0) die("ibv_post_recv");
    }
    for (uint32_t i = 0; i < kReceives; ++i) {
      fill(100000 * i, 1 + 3000 * i, i);
      post(IBV_WR_SEND_WITH_IMM, 100000 * i, 1 + 3000 * i, 0, 0, htonl(i));
    }
    for (uint32_t sent = 0, got = 0; sent + got < 2 * kReceives && why.empty();) {
      ibv_wc wc;
      if (!poll(&wc)) return void(wrong("no answer"));
      if (wc.status != IBV_WC_SUCCESS) return void(wrong(std::string("status ") + ibv_wc_status_str(wc.status)));
      if ((wc.opcode & IBV_WC_RECV) == 0) {
        ++sent;
        continue;
      }
      if (ntohl(wc.imm_data) != got || wc.byte_len != 1 + 3000 * got) return void(wrong("answers are out of order"));
      is_at(buffer.data() + kReceiveAt + wc.wr_id * kReceive, wc.byte_len, got, "answer");
      ++got;
    }
  }
  void good_writes(int count) {
    for (int i = 0; i < count; ++i) post(IBV_WR_RDMA_WRITE, 0, 2000, 0, server.rkey);
  }
  /// After `good` requests that succeed, one fails with this status and the rest is flushed.
  void expect_failure(int good, ibv_wc_status wanted, const std::string& what) {
    good_writes(2);
    for (int i = 0; i < good; ++i) completes(IBV_WC_SUCCESS, "before " + what);
    completes(wanted, what);
    completes(IBV_WC_WR_FLUSH_ERR, "after " + what);
    completes(IBV_WC_WR_FLUSH_ERR, "after " + what);
  }
};

bool run_case(const sockaddr* address, const std::string& name) {
  Client client;
  const auto check = [&] {
    if (name == "reject") {
      if (!client.connect(address, name, RDMA_CM_EVENT_REJECTED)) return;
      if (client.status != 28) client.wrong("reason " + std::to_string(client.status));
      if (client.data.substr(0, 9) != "not today") client.wrong("private data is '" + client.data.substr(0, 20) + "'");
      return;
    }
    if (name == "nobody") {
      if (client.connect(address, name, RDMA_CM_EVENT_REJECTED) && client.status != 8)
        client.wrong("reason " + std::to_string(client.status));
      return;
    }
    if (!client.connect(address, name, RDMA_CM_EVENT_ESTABLISHED)) return;
    if (client.server.magic != kMagic) return void(client.wrong("the private data of the REP is wrong"));
    const Memory& server = client.server;
    if (name == "write") client.check_writes();
    if (name == "read") client.check_reads();
    if (name == "atomic") client.check_atomics();
    if (name == "send") client.check_sends();
    if (name == "answer") client.check_answers();
    if (name == "wkey") {
      client.good_writes(10);
      client.post(IBV_WR_RDMA_WRITE, 0, 100, 0, server.rkey ^ 0x100);
      client.expect_failure(10, IBV_WC_REM_ACCESS_ERR, "WRITE with a wrong key");
    }
    if (name == "wlong") {
      client.post(IBV_WR_RDMA_WRITE, 0, 1u << 20, kMemory - (1u << 19), server.rkey);
      client.expect_failure(0, IBV_WC_REM_ACCESS_ERR, "WRITE beyond the region");
    }
    if (name == "rkey") {
      client.good_writes(10);
      client.post(IBV_WR_RDMA_READ, 0, 100, 0, server.rkey ^ 0x100);
      client.expect_failure(10, IBV_WC_REM_ACCESS_ERR, "READ with a wrong key");
    }
    if (name == "rights") {
      client.post(IBV_WR_RDMA_READ, 0, 100, 0, server.read_only);
      client.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 64, server.read_only, 0, 1);
      client.expect_failure(1, IBV_WC_REM_ACCESS_ERR, "FETCH_ADD without the right");
    }
    if (name == "short") {
      client.post(IBV_WR_SEND, 0, 50);
      client.post(IBV_WR_SEND, 0, 101);
      client.expect_failure(1, IBV_WC_REM_INV_REQ_ERR, "SEND into a short receive");
    }
    if (name == "rnr") {
      client.good_writes(3);
      client.post(IBV_WR_SEND, 0, 50);
      client.expect_failure(3, IBV_WC_RNR_RETRY_EXC_ERR, "SEND without a receive");
    }
    if (name == "late") {
      client.fill(0, 70000, 5);
      client.post(IBV_WR_SEND, 0, 70000);
      client.completes(IBV_WC_SUCCESS, "SEND before its receive") &&
          client.is_at(memory + kReceiveAt, 70000, 5, "SEND before its receive");
    }
    if (name == "leave") client.expect(RDMA_CM_EVENT_DISCONNECTED);
    if (name == "load") {
      // Until the connection breaks.
      std::printf("LOADING\n");
      std::fflush(stdout);
      client.good_writes(kDepth / 2);
      ibv_wc wc{};
      while (client.poll(&wc) && wc.status == IBV_WC_SUCCESS) client.good_writes(1);
      std::printf("BROKEN %s\n", ibv_wc_status_str(wc.status));
      std::fflush(stdout);
      if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_WR_FLUSH_ERR) client.wrong("no error");
      client.expect(RDMA_CM_EVENT_DISCONNECTED);
    }
  };
  check();
  std::printf("%s %s %s\n", client.why.empty() ? "PASS" : "FAIL", name.c_str(), client.why.c_str());
  std::fflush(stdout);
  if (client.id != nullptr) client.close();
  return client.why.empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const uint16_t port = htons(static_cast<uint16_t>(std::atoi(argv[3])));
  sockaddr_in ipv4{};
  sockaddr_in6 ipv6{};
  ipv4.sin_family = AF_INET;
  ipv6.sin6_family = AF_INET6;
  ipv4.sin_port = ipv6.sin6_port = port;
  const bool is_ipv4 = inet_pton(AF_INET, argv[2], &ipv4.sin_addr) == 1;
  if (!is_ipv4 && inet_pton(AF_INET6, argv[2], &ipv6.sin6_addr) != 1) return 2;
  memory = map_file(argv[4]);
  auto* const at = is_ipv4 ? reinterpret_cast<sockaddr*>(&ipv4) : reinterpret_cast<sockaddr*>(&ipv6);
  if (std::string(argv[1]) == "server") {
    rdma_event_channel* const channel = rdma_create_event_channel();
    rdma_cm_id* listener;
    if (channel == nullptr || rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) != 0) die("rdma_create_id");
    if (rdma_bind_addr(listener, at) != 0 || rdma_listen(listener, 16) != 0) die("rdma_listen");
    std::printf("LISTENING\n");
    std::fflush(stdout);
    serve(channel);
  }
  bool passed = true;
  for (int i = 5; i < argc; ++i) passed = run_case(at, argv[i]) && passed;
  return passed ? 0 : 1;
}
