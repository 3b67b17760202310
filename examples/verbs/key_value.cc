// SPDX-License-Identifier: Apache-2.0
// A small key-value store over RDMA, with the verbs and librdmacm of any adapter. docs/start/key-value-store.md
// explains it.
//
//     key_value serve PORT
//     key_value HOST PORT put KEY VALUE
//     key_value HOST PORT get KEY
//     key_value HOST PORT time KEY COUNT
//
// PUT is a message: the server's processor stores the value. GET is an RDMA READ: the client reads the server's table,
// and the server's processor has no part in it.
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kSlots = 1024;
constexpr uint32_t kProbes = 8;     // a key is in one of so many slots, which one READ fetches
constexpr uint32_t kRequests = 16;  // receives that the server has posted for each client

// As it lies in the server's memory. A READ may see it half written: then the sum is wrong, and the client reads again.
struct Slot {
  char key[32];
  char value[80];
  uint64_t version;  // 0: free
  uint64_t sum;
};
static_assert(sizeof(Slot) == 128);

struct Request {
  char key[sizeof Slot::key];
  char value[sizeof Slot::value];
};
struct Reply {
  uint32_t stored;
};
// The place of the table, in network byte order: private data of the connection.
struct Offer {
  uint64_t address;
  uint32_t rkey;
};

[[noreturn]] void die(const char* call) {
  std::fprintf(stderr, "key_value: %s: %s\n", call, std::strerror(errno));
  std::exit(1);
}

uint64_t hash_of(const void* data, size_t bytes) {  // FNV-1a
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return hash;
}
uint64_t sum_of(const Slot& slot) { return hash_of(&slot, offsetof(Slot, sum)); }
uint32_t home_of(const char* key) { return static_cast<uint32_t>(hash_of(key, std::strlen(key)) % kSlots); }

// ---- server ----

class Table {
 public:
  bool put(const Request& request) {
    const std::lock_guard lock(mutex_);
    Slot* const first = &slots_[home_of(request.key)];
    for (Slot* slot = first; slot != first + kProbes; ++slot) {
      if (slot->version != 0 && std::strcmp(slot->key, request.key) != 0) continue;
      std::memcpy(slot->key, request.key, sizeof slot->key);
      std::memcpy(slot->value, request.value, sizeof slot->value);
      ++slot->version;
      slot->sum = sum_of(*slot);
      return true;
    }
    return false;  // all of its slots hold other keys
  }
  ibv_mr* share(ibv_pd* pd) {
    return ibv_reg_mr(pd, slots_.data(), sizeof slots_, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  }

 private:
  std::mutex mutex_;
  std::array<Slot, kSlots + kProbes - 1> slots_{};
};

// Answers the messages of one client until the connection ends.
void answer(rdma_cm_id* id, Table& table, ibv_mr* shared, std::vector<Request>* requests, ibv_mr* received) {
  ibv_wc completion;
  while (rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS) {
    auto* const request = reinterpret_cast<Request*>(completion.wr_id);
    request->key[sizeof request->key - 1] = '\0';
    const Reply reply{
        htobe32(completion.byte_len == sizeof *request && request->key[0] != '\0' && table.put(*request))};
    if (rdma_post_recv(id, request, request, sizeof *request, received) != 0) break;
    if (rdma_post_send(id, nullptr, const_cast<Reply*>(&reply), sizeof reply, nullptr,
                       IBV_SEND_INLINE | IBV_SEND_SIGNALED) != 0)
      break;
    if (rdma_get_send_comp(id, &completion) != 1 || completion.status != IBV_WC_SUCCESS) break;
  }
  rdma_destroy_qp(id);
  ibv_dereg_mr(received);
  ibv_dereg_mr(shared);
  delete requests;
  rdma_destroy_id(id);
}

ibv_qp_init_attr queue_pair() {
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {kRequests, kRequests, 1, 1, sizeof(Request)};
  return attributes;
}

void accept(rdma_cm_id* id, Table& table) {
  ibv_qp_init_attr attributes = queue_pair();
  // Without a protection domain and completion queues, librdmacm makes them.
  if (rdma_create_qp(id, nullptr, &attributes) != 0) die("rdma_create_qp");
  ibv_mr* const shared = table.share(id->pd);
  auto* const requests = new std::vector<Request>(kRequests);
  ibv_mr* const received = rdma_reg_msgs(id, requests->data(), kRequests * sizeof(Request));
  if (shared == nullptr || received == nullptr) die("ibv_reg_mr");
  for (Request& request : *requests)
    if (rdma_post_recv(id, &request, &request, sizeof request, received) != 0) die("rdma_post_recv");
  const Offer offer{htobe64(reinterpret_cast<uint64_t>(shared->addr)), htobe32(shared->rkey)};
  rdma_conn_param parameters{};
  parameters.private_data = &offer;
  parameters.private_data_len = sizeof offer;
  parameters.responder_resources = 16;  // READs of the client at a time
  if (rdma_accept(id, &parameters) != 0) die("rdma_accept");
  std::thread(answer, id, std::ref(table), shared, requests, received).detach();
}

int serve(const char* port) {
  static Table table;
  rdma_event_channel* const events = rdma_create_event_channel();
  if (events == nullptr) die("rdma_create_event_channel");
  rdma_cm_id* listener = nullptr;
  if (rdma_create_id(events, &listener, nullptr, RDMA_PS_TCP) != 0) die("rdma_create_id");
  rdma_addrinfo hints{}, *here = nullptr;
  hints.ai_flags = RAI_PASSIVE;
  hints.ai_port_space = RDMA_PS_TCP;
  if (rdma_getaddrinfo(nullptr, port, &hints, &here) != 0) die("rdma_getaddrinfo");
  if (rdma_bind_addr(listener, here->ai_src_addr) != 0) die("rdma_bind_addr");
  if (rdma_listen(listener, 16) != 0) die("rdma_listen");
  rdma_freeaddrinfo(here);
  std::printf("ready on port %u\n", ntohs(rdma_get_src_port(listener)));
  std::fflush(stdout);
  for (rdma_cm_event* event = nullptr; rdma_get_cm_event(events, &event) == 0;) {
    rdma_cm_id* const id = event->id;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) accept(id, table);
    // The thread of the client gets its receives back, and ends.
    if (event->event == RDMA_CM_EVENT_DISCONNECTED) rdma_disconnect(id);
    rdma_ack_cm_event(event);
  }
  die("rdma_get_cm_event");
}

// ---- client ----

class Client {
 public:
  Client(const char* host, const char* port) {
    rdma_addrinfo hints{}, *there = nullptr;
    hints.ai_port_space = RDMA_PS_TCP;
    if (rdma_getaddrinfo(host, port, &hints, &there) != 0) die("rdma_getaddrinfo");
    ibv_qp_init_attr attributes = queue_pair();
    if (rdma_create_ep(&id_, there, nullptr, &attributes) != 0) die("rdma_create_ep");
    rdma_freeaddrinfo(there);
    memory_ = rdma_reg_msgs(id_, &buffers_, sizeof buffers_);
    if (memory_ == nullptr) die("rdma_reg_msgs");
    rdma_conn_param parameters{};
    parameters.initiator_depth = 16;
    parameters.retry_count = 7;
    parameters.rnr_retry_count = 7;
    if (rdma_connect(id_, &parameters) != 0) die("rdma_connect");
    if (id_->event->param.conn.private_data_len < sizeof offer_) {
      std::fprintf(stderr, "key_value: the server has sent no table\n");
      std::exit(1);
    }
    std::memcpy(&offer_, id_->event->param.conn.private_data, sizeof offer_);
  }
  ~Client() {
    rdma_disconnect(id_);
    rdma_dereg_mr(memory_);
    rdma_destroy_ep(id_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool put(const std::string& key, const std::string& value) {
    buffers_.request = {};
    key.copy(buffers_.request.key, sizeof buffers_.request.key - 1);
    value.copy(buffers_.request.value, sizeof buffers_.request.value - 1);
    if (rdma_post_recv(id_, nullptr, &buffers_.reply, sizeof buffers_.reply, memory_) != 0) die("rdma_post_recv");
    if (rdma_post_send(id_, nullptr, &buffers_.request, sizeof buffers_.request, memory_, IBV_SEND_SIGNALED) != 0)
      die("rdma_post_send");
    finish(rdma_get_send_comp);
    finish(rdma_get_recv_comp);
    return be32toh(buffers_.reply.stored) != 0;
  }

  // Null: there is no such key.
  const char* get(const std::string& key) {
    const uint64_t from = be64toh(offer_.address) + home_of(key.c_str()) * sizeof(Slot);
    for (;;) {
      if (rdma_post_read(id_, nullptr, buffers_.slots, sizeof buffers_.slots, memory_, IBV_SEND_SIGNALED, from,
                         be32toh(offer_.rkey)) != 0)
        die("rdma_post_read");
      finish(rdma_get_send_comp);
      bool is_whole = true;
      for (const Slot& slot : buffers_.slots) {
        if (slot.version == 0) continue;
        is_whole = is_whole && slot.sum == sum_of(slot);
        if (is_whole && key == slot.key) return slot.value;
      }
      if (is_whole) return nullptr;
    }
  }

 private:
  void finish(int (*take)(rdma_cm_id*, ibv_wc*)) {
    ibv_wc completion;
    if (take(id_, &completion) != 1) die("completion");
    if (completion.status == IBV_WC_SUCCESS) return;
    std::fprintf(stderr, "key_value: the request failed: %s\n", ibv_wc_status_str(completion.status));
    std::exit(1);
  }

  rdma_cm_id* id_ = nullptr;
  ibv_mr* memory_ = nullptr;
  Offer offer_{};
  struct {
    Request request;
    Reply reply;
    Slot slots[kProbes];
  } buffers_{};
};

int use(Client& client, const std::vector<std::string>& words) {
  const std::string& key = words[1];
  if (key.empty() || key.size() >= sizeof Slot::key) {
    std::fprintf(stderr, "key_value: a key has 1 to %zu bytes\n", sizeof Slot::key - 1);
    return 2;
  }
  if (words[0] == "put") {
    if (words[2].size() >= sizeof Slot::value) {
      std::fprintf(stderr, "key_value: a value has at most %zu bytes\n", sizeof Slot::value - 1);
      return 2;
    }
    if (client.put(key, words[2])) return 0;
    std::fprintf(stderr, "key_value: no room for that key\n");
    return 1;
  }
  const char* const value = client.get(key);
  if (value == nullptr) {
    std::fprintf(stderr, "key_value: no such key\n");
    return 1;
  }
  if (words[0] == "get") {
    std::printf("%s\n", value);
    return 0;
  }
  std::vector<double> took(std::max(std::strtoul(words[2].c_str(), nullptr, 10), 1ul));
  for (double& each : took) {
    const auto begin = std::chrono::steady_clock::now();
    client.get(key);
    each = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }
  std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2), took.end());
  std::printf("%zu GETs, median %.1f us\n", took.size(), took[took.size() / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "serve") return serve(argv[2]);
  const bool has_value = words.size() == 5 && (words[2] == "put" || words[2] == "time");
  if (!has_value && !(words.size() == 4 && words[2] == "get")) {
    std::fprintf(stderr,
                 "usage: key_value serve PORT | key_value HOST PORT put KEY VALUE | key_value HOST PORT get KEY |\n"
                 "       key_value HOST PORT time KEY COUNT\n");
    return 2;
  }
  Client client(argv[1], argv[2]);
  return use(client, {words.begin() + 2, words.end()});
}
