// SPDX-License-Identifier: Apache-2.0
/// A server with device memory and a client that writes to it; run_pool.py builds them. After each completion the
/// client has the server compare what is there.
///
///   device_memory_probe server ADDRESS PORT   one connection
///   device_memory_probe client ADDRESS PORT   "PASS CASE" or "FAIL CASE why" for each
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kMemory = 4u << 20;  // of the server's device memory
constexpr uint32_t kLongest = 300'001;
constexpr int kDepth = 64;
constexpr auto kLimit = std::chrono::seconds(30);

enum Command : uint32_t { kCompare = 1, kDeregister };

struct Order {
  Command command;
  uint32_t seed;
  uint64_t offset;
  uint64_t length;
};

[[noreturn]] void die(const char* what) {
  std::printf("FAIL probe %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

char pattern(uint64_t i, uint32_t seed) { return static_cast<char>(i * 31 + i / 251 + seed); }

/// A connection, with one receive for an order or an answer.
struct End {
  rdma_cm_id* id = nullptr;
  Order* message = nullptr;
  ibv_mr* mr = nullptr;

  void prepare() {
    message = static_cast<Order*>(std::calloc(2, sizeof(Order)));  // received, sent
    mr = rdma_reg_msgs(id, message, 2 * sizeof(Order));
    if (mr == nullptr) die("rdma_reg_msgs");
    receive();
  }
  void receive() {
    if (rdma_post_recv(id, nullptr, message, sizeof(Order), mr) != 0) die("rdma_post_recv");
  }
  void send(const Order& order) {
    message[1] = order;
    if (rdma_post_send(id, nullptr, message + 1, sizeof order, mr, IBV_SEND_SIGNALED) != 0) die("rdma_post_send");
  }
  /// Polls: kNothing after kLimit.
  static constexpr ibv_wc_status kNothing = IBV_WC_GENERAL_ERR;
  static ibv_wc_status next(ibv_cq* cq) {
    ibv_wc wc{};
    for (const auto end = std::chrono::steady_clock::now() + kLimit; std::chrono::steady_clock::now() < end;)
      if (ibv_poll_cq(cq, 1, &wc) == 1) return wc.status;
    return kNothing;
  }
};

rdma_addrinfo* resolve(const char* address, const char* port, int flags) {
  rdma_addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags;
  hints.ai_port_space = RDMA_PS_TCP;
  if (rdma_getaddrinfo(address, port, &hints, &found) != 0) die("rdma_getaddrinfo");
  return found;
}

ibv_qp_init_attr attributes() {
  ibv_qp_init_attr attr{};
  attr.cap = {kDepth, kDepth, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  return attr;
}

int serve(const char* address, const char* port) {
  ibv_qp_init_attr attr = attributes();
  rdma_cm_id* listener = nullptr;
  End end;
  if (rdma_create_ep(&listener, resolve(address, port, RAI_PASSIVE), nullptr, &attr) != 0) die("rdma_create_ep");
  if (rdma_listen(listener, 1) != 0 || rdma_get_request(listener, &end.id) != 0) die("rdma_get_request");
  end.prepare();
  ibv_alloc_dm_attr wanted{};
  wanted.length = kMemory;
  ibv_dm* const dm = ibv_alloc_dm(end.id->verbs, &wanted);
  if (dm == nullptr) die("ibv_alloc_dm");
  ibv_mr* region =
      ibv_reg_dm_mr(end.id->pd, dm, 0, kMemory,
                    IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  if (region == nullptr) die("ibv_reg_dm_mr");
  rdma_conn_param param{};
  param.private_data = &region->rkey;
  param.private_data_len = sizeof region->rkey;
  param.responder_resources = param.initiator_depth = 4;
  param.retry_count = param.rnr_retry_count = 7;
  if (rdma_accept(end.id, &param) != 0) die("rdma_accept");
  while (End::next(end.id->recv_cq) == IBV_WC_SUCCESS) {
    const Order order = *end.message;
    end.receive();
    Order answer = order;
    if (order.command == kDeregister) {
      if (ibv_dereg_mr(region) != 0) die("ibv_dereg_mr");
      region = nullptr;
      // From now on nobody else writes here.
      const std::vector<char> zeros(kMemory);
      if (ibv_memcpy_to_dm(dm, 0, zeros.data(), zeros.size()) != 0) die("ibv_memcpy_to_dm");
    } else {
      std::vector<char> seen(kMemory);
      if (ibv_memcpy_from_dm(seen.data(), dm, 0, seen.size()) != 0) die("ibv_memcpy_from_dm");
      answer.length = UINT64_MAX;  // the first byte that is wrong
      for (uint64_t i = 0; i < order.length && answer.length == UINT64_MAX; ++i)
        if (seen[order.offset + i] != (order.seed == 0 ? char{} : pattern(i, order.seed))) answer.length = i;
    }
    end.send(answer);
    if (End::next(end.id->send_cq) != IBV_WC_SUCCESS) break;
  }
  rdma_disconnect(end.id);
  rdma_destroy_qp(end.id);
  if (region != nullptr) ibv_dereg_mr(region);
  return ibv_free_dm(dm);
}

struct Client : End {
  std::vector<char> data = std::vector<char>(2 * kLongest);
  ibv_mr* of_data = nullptr;
  uint32_t rkey = 0;

  bool try_connect(const char* address, const char* port) {
    ibv_qp_init_attr attr = attributes();
    if (rdma_create_ep(&id, resolve(address, port, 0), nullptr, &attr) != 0) return false;
    prepare();
    rdma_conn_param param{};
    param.responder_resources = param.initiator_depth = 4;
    param.retry_count = param.rnr_retry_count = 7;
    if (rdma_connect(id, &param) == 0) return true;
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    return false;
  }
  void connect(const char* address, const char* port) {
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (!try_connect(address, port)) {
      if (std::chrono::steady_clock::now() > end) die("rdma_connect");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // sleep: the server may not listen yet
    }
    if (id->event->param.conn.private_data_len < sizeof rkey) die("private data");
    std::memcpy(&rkey, id->event->param.conn.private_data, sizeof rkey);
    of_data = rdma_reg_msgs(id, data.data(), data.size());
    if (of_data == nullptr) die("rdma_reg_msgs");
  }
  void write(uint32_t seed, uint64_t offset, uint32_t length) {
    for (uint32_t i = 0; i < length; ++i) data[i] = pattern(i, seed);
    if (rdma_post_write(id, nullptr, data.data(), length, of_data, 0, offset, rkey) != 0) die("rdma_post_write");
  }
  std::string order(const Order& wanted) {
    send(wanted);
    if (next(id->send_cq) != IBV_WC_SUCCESS || next(id->recv_cq) != IBV_WC_SUCCESS) return "the server does not answer";
    const uint64_t wrong = message->length;
    const bool compares = message->command == kCompare;
    receive();
    return compares && wrong != UINT64_MAX ? "byte " + std::to_string(wrong) + " is wrong" : "";
  }

  std::string writes() {
    std::mt19937 random(1);
    for (uint32_t i = 1; i < 200; ++i) {
      const uint32_t length =
          i % 3 == 0 ? 1 + static_cast<uint32_t>(random()) % 5000 : 1 + static_cast<uint32_t>(random()) % kLongest;
      const uint64_t to = random() % (kMemory - kLongest);
      write(i, to, length);
      if (const ibv_wc_status status = next(id->send_cq); status != IBV_WC_SUCCESS) return ibv_wc_status_str(status);
      if (const std::string why = order({kCompare, i, to, length}); !why.empty()) return why;
    }
    return "";
  }
  std::string in_order() {
    // The last one to a place wins, and a READ sees what was written before it.
    for (uint32_t i = 1; i < 60; ++i) {
      const uint32_t length = i % 2 == 0 ? 64 : 50'000;
      for (uint32_t j = 0; j < 4; ++j) {
        write(i, 4096, length);  // the same bytes each time
        if (rdma_post_write(id, nullptr, data.data(), 8, of_data, 0, 8 * j, rkey) != 0) die("rdma_post_write");
      }
      if (rdma_post_read(id, nullptr, data.data() + kLongest, length, of_data, 0, 4096, rkey) != 0)
        die("rdma_post_read");
      for (int done = 0; done < 9; ++done)
        if (const ibv_wc_status status = next(id->send_cq); status != IBV_WC_SUCCESS) return ibv_wc_status_str(status);
      if (std::memcmp(data.data(), data.data() + kLongest, length) != 0) return "a READ found older bytes";
    }
    return "";
  }
  std::string deregistered() {
    // Requests are on their way when the key becomes invalid.
    send({kDeregister, 0, 0, 0});
    for (uint32_t i = 0; i < kDepth / 2; ++i) write(5, 0, kLongest);
    for (uint32_t i = 0; i < kDepth / 2 + 1; ++i)
      if (next(id->send_cq) == kNothing) return "no completion";
    return "";
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  if (std::strcmp(argv[1], "server") == 0) return serve(argv[2], argv[3]);
  Client client;
  client.connect(argv[2], argv[3]);
  bool all = true;
  const auto report = [&](const char* name, const std::string& why) {
    std::printf("%s %s %s\n", why.empty() ? "PASS" : "FAIL", name, why.c_str());
    all = all && why.empty();
  };
  report("write", client.writes());
  report("order", client.in_order());
  report("deregister", client.deregistered());
  return all ? 0 : 1;
}
