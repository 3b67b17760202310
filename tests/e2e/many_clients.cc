// SPDX-License-Identifier: Apache-2.0
// A server that many processes are connected to at the same time, which ends when its standard input does, and those
// processes: each connects by the connection manager, sends a number, gets it back, says so, and stays until all do.
//   many_clients server ADDRESS PORT
//   many_clients clients ADDRESS PORT COUNT
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kMostClients = 4096;
constexpr int kTimeoutMs = 20'000;

int say(const char* call) {
  std::printf("%s: errno %d\n", call, errno);
  return 1;
}

ibv_qp_init_attr qp_options(ibv_cq* cq) {
  ibv_qp_init_attr options{};
  options.qp_type = IBV_QPT_RC;
  options.send_cq = options.recv_cq = cq;
  options.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8};
  return options;
}

class Server {
 public:
  int run(const char* address, const char* port) {
    rdma_event_channel* const events = rdma_create_event_channel();
    rdma_cm_id* listener = nullptr;
    rdma_addrinfo hints{};
    hints.ai_flags = RAI_PASSIVE;
    hints.ai_port_space = RDMA_PS_TCP;
    rdma_addrinfo* where = nullptr;
    if (events == nullptr || rdma_create_id(events, &listener, nullptr, RDMA_PS_TCP) != 0) return say("rdma_create_id");
    if (rdma_getaddrinfo(address, port, &hints, &where) != 0) return say("rdma_getaddrinfo");
    if (rdma_bind_addr(listener, where->ai_src_addr) != 0 || rdma_listen(listener, kMostClients) != 0)
      return say("rdma_listen");
    std::printf("ready\n");
    for (;;) {
      if (cq_ != nullptr) serve();
      pollfd fds[] = {{events->fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      poll(fds, 2, cq_ == nullptr ? -1 : 1);
      if (fds[1].revents != 0) return 0;
      if (fds[0].revents == 0) continue;
      rdma_cm_event* event = nullptr;
      if (rdma_get_cm_event(events, &event) != 0) return say("rdma_get_cm_event");
      const bool asks = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
      rdma_cm_id* const id = event->id;
      rdma_ack_cm_event(event);
      if (asks && !accept(id)) return say("accept");
    }
  }

 private:
  bool accept(rdma_cm_id* id) {
    if (pd_ == nullptr) {
      pd_ = ibv_alloc_pd(id->verbs);
      cq_ = ibv_create_cq(id->verbs, 2 * kMostClients, nullptr, nullptr, 0);
      memory_ = ibv_reg_mr(pd_, numbers_.data(), numbers_.size() * sizeof(uint64_t), IBV_ACCESS_LOCAL_WRITE);
      if (memory_ == nullptr) return false;
    }
    ibv_qp_init_attr options = qp_options(cq_);
    if (rdma_create_qp(id, pd_, &options) != 0) return false;
    const uint64_t place = ids_.size();
    ids_.push_back(id);
    return rdma_post_recv(id, reinterpret_cast<void*>(place), &numbers_[place], sizeof(uint64_t), memory_) == 0 &&
           rdma_accept(id, nullptr) == 0;
  }
  void serve() {
    ibv_wc wc;
    while (ibv_poll_cq(cq_, 1, &wc) > 0) {
      if (wc.status != IBV_WC_SUCCESS) std::printf("server: %s\n", ibv_wc_status_str(wc.status));
      if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV)
        rdma_post_send(ids_[wc.wr_id], nullptr, &numbers_[wc.wr_id], sizeof(uint64_t), nullptr,
                       IBV_SEND_INLINE | IBV_SEND_SIGNALED);
    }
  }

  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* memory_ = nullptr;
  std::vector<uint64_t> numbers_ = std::vector<uint64_t>(kMostClients);
  std::vector<rdma_cm_id*> ids_;
};

int client(const char* address, const char* port, uint64_t number, int done) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* where = nullptr;
  if (rdma_getaddrinfo(address, port, &hints, &where) != 0) return say("rdma_getaddrinfo");
  ibv_qp_init_attr options = qp_options(nullptr);
  rdma_cm_id* id = nullptr;
  if (rdma_create_ep(&id, where, nullptr, &options) != 0) return say("rdma_create_ep");
  uint64_t answer = 0;
  ibv_mr* const memory = rdma_reg_msgs(id, &answer, sizeof answer);
  if (memory == nullptr || rdma_post_recv(id, nullptr, &answer, sizeof answer, memory) != 0)
    return say("rdma_post_recv");
  if (rdma_connect(id, nullptr) != 0) return say("rdma_connect");
  if (rdma_post_send(id, nullptr, &number, sizeof number, nullptr, IBV_SEND_INLINE) != 0) return say("rdma_post_send");
  ibv_wc wc;
  if (rdma_get_recv_comp(id, &wc) != 1) return say("rdma_get_recv_comp");
  if (wc.status != IBV_WC_SUCCESS || answer != number) {
    std::printf("client %d: %s\n", static_cast<int>(number), ibv_wc_status_str(wc.status));
    return 1;
  }
  if (write(done, "y", 1) != 1) return say("write");
  pause();
  return 0;
}

int clients(const char* address, const char* port, int count) {
  std::vector<pid_t> children;
  int good = 0;
  for (int i = 0; i < count; ++i) {
    int ends[2];
    if (pipe(ends) != 0) return say("pipe");
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      const int status = client(address, port, static_cast<uint64_t>(i + 1), ends[1]);
      std::fflush(stdout);
      _exit(status);
    }
    children.push_back(child);
    close(ends[1]);
    pollfd answered{ends[0], POLLIN, 0};
    char yes;
    if (poll(&answered, 1, kTimeoutMs) == 1 && read(ends[0], &yes, 1) == 1) ++good;
    close(ends[0]);
  }
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::printf("%d of %d answered\n", good, count);
  return good == count ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 4 && std::strcmp(argv[1], "server") == 0) return Server().run(argv[2], argv[3]);
  if (argc == 5 && std::strcmp(argv[1], "clients") == 0) return clients(argv[2], argv[3], std::atoi(argv[4]));
  std::fprintf(stderr, "usage: many_clients server ADDRESS PORT | clients ADDRESS PORT COUNT\n");
  return 2;
}
