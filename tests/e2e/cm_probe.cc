// SPDX-License-Identifier: Apache-2.0
/// A program of librdmacm that does as it is told, line by line, and says what happens to it; run_connection_faults.py
/// builds and drives it. All connections share a completion queue, so that none has descriptors of its own.
///
///   listen ADDRESS PORT BACKLOG   "listening PORT", or "refused ERRNO"
///   hold                          requests are taken from now on and not answered: "held"
///   connect ADDRESS PORT COUNT    each once
///   persist ADDRESS PORT COUNT    each again whenever it ends
///   cycle ADDRESS PORT COUNT      connects, disconnects and destroys one after the other: "cycled COUNT"
///   load                          each connection writes to the other end's memory from now on, without a pause
///   write                         each does so once: "written N", how many were without an error
///   drop                          destroys all ids but listeners: "dropped"
///   quit
///   vanish                        ends by _exit()
///
/// Events are told as "active NAME STATUS" or "passive NAME STATUS".
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTimeoutMs = 2000;
constexpr auto kPause = std::chrono::milliseconds(100);  // before one that ended is connected again
constexpr int kQueueEntries = 16384;

struct Target {
  sockaddr_storage address{};
  bool persists = false;
};
/// What an end says of its memory in its private data.
struct Memory {
  uint64_t address;
  uint32_t key;
};
struct Connection {
  rdma_cm_id* id = nullptr;
  const Target* target = nullptr;  ///< null: the other end asked
  Memory peer{};
  bool established = false;
  bool writes = false;
};

rdma_event_channel* channel;
ibv_cq* cq;
ibv_mr* mr;
alignas(8) char memory[64];
std::deque<Target> targets;
std::unordered_set<Connection*> connections;
std::vector<std::pair<Clock::time_point, const Target*>> again;
bool holds = false, loads = false;
long cycles_left = 0, cycles = 0;
int written = 0, to_write = -1;

template <class... Args>
void say(const char* format, Args... args) {
  std::printf(format, args...);
  std::putchar('\n');
  std::fflush(stdout);
}
void say(const char* text) { say("%s", text); }

bool make_qp(rdma_cm_id* id) {
  if (cq == nullptr) cq = ibv_create_cq(id->verbs, kQueueEntries, nullptr, nullptr, 0);
  if (mr == nullptr) mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 2;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  return cq != nullptr && mr != nullptr && rdma_create_qp(id, nullptr, &attr) == 0;
}

rdma_conn_param param_of(Memory* own) {
  *own = {reinterpret_cast<uint64_t>(memory), mr->rkey};
  rdma_conn_param param{};
  param.private_data = own;
  param.private_data_len = sizeof *own;
  param.responder_resources = param.initiator_depth = 1;
  param.retry_count = param.rnr_retry_count = 7;
  return param;
}

void start(const Target* target) {
  auto* connection = new Connection;
  connection->target = target;
  auto* to = reinterpret_cast<sockaddr*>(const_cast<sockaddr_storage*>(&target->address));
  if (rdma_create_id(channel, &connection->id, connection, RDMA_PS_TCP) != 0 ||
      rdma_resolve_addr(connection->id, nullptr, to, kTimeoutMs) != 0) {
    say("cannot resolve %d", errno);
    if (connection->id != nullptr) rdma_destroy_id(connection->id);
    delete connection;
    if (target->persists) again.emplace_back(Clock::now() + kPause, target);
    return;
  }
  connections.insert(connection);
}

void end(Connection* connection) {
  rdma_destroy_qp(connection->id);
  rdma_destroy_id(connection->id);
  connections.erase(connection);
  if (connection->target != nullptr && connection->target->persists)
    again.emplace_back(Clock::now() + kPause, connection->target);
  delete connection;
}

bool write(Connection* connection) {
  ibv_sge from{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
  ibv_send_wr request{}, *bad;
  request.wr_id = reinterpret_cast<uint64_t>(connection);
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = connection->peer.address + 8;
  request.wr.rdma.rkey = connection->peer.key;
  connection->writes = ibv_post_send(connection->id->qp, &request, &bad) == 0;
  return connection->writes;
}

void say_written() {
  if (to_write != 0) return;
  say("written %d", written);
  to_write = -1;
}

void complete() {
  ibv_wc done[64];
  for (int count; cq != nullptr && (count = ibv_poll_cq(cq, 64, done)) > 0;)
    for (int i = 0; i < count; ++i) {
      auto* connection = reinterpret_cast<Connection*>(done[i].wr_id);
      if (connections.count(connection) == 0) continue;
      connection->writes = false;
      if (to_write > 0) {
        written += done[i].status == IBV_WC_SUCCESS ? 1 : 0;
        --to_write;
        say_written();
      }
    }
}

void accept(rdma_cm_id* id) {
  auto* connection = new Connection{id};
  id->context = connection;
  connections.insert(connection);
  if (holds) return say("held");
  Memory own;
  if (!make_qp(id)) return say("cannot make a queue pair %d", errno), end(connection);
  rdma_conn_param param = param_of(&own);
  if (rdma_accept(id, &param) != 0) say("cannot accept %d", errno), end(connection);
}

void cycle_on(Connection* connection) {
  const Target* target = connection->target;
  end(connection);
  if (--cycles_left > 0) return start(target);
  say("cycled %ld", cycles);
}

void handle(rdma_cm_event* event) {
  rdma_cm_id* id = event->id;
  const rdma_cm_event_type type = event->event;
  const int status = event->status;
  Memory told{};
  if (event->param.conn.private_data_len >= sizeof told)
    std::memcpy(&told, event->param.conn.private_data, sizeof told);
  rdma_ack_cm_event(event);
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) return accept(id);
  auto* connection = static_cast<Connection*>(id->context);
  const bool active = connection->target != nullptr;
  const bool cycling = active && cycles_left > 0;
  const char* side = active ? "active" : "passive";
  const char* name = rdma_event_str(type) + std::strlen("RDMA_CM_EVENT_");
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (rdma_resolve_route(id, kTimeoutMs) != 0) say("cannot resolve a route %d", errno), end(connection);
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: {
      Memory own;
      if (!make_qp(id)) return say("cannot make a queue pair %d", errno), end(connection);
      rdma_conn_param param = param_of(&own);
      if (rdma_connect(id, &param) != 0) say("cannot connect %d", errno), end(connection);
      return;
    }
    case RDMA_CM_EVENT_ESTABLISHED:
      connection->established = true;
      connection->peer = told;
      if (cycling)
        rdma_disconnect(id);
      else
        say("%s %s %d", side, name, status);
      return;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;
    default:
      if (cycling && type == RDMA_CM_EVENT_DISCONNECTED) return cycle_on(connection);
      // What the other side of cycles sees is told by its memory alone.
      say("%s %s %d", side, name, status);
      end(connection);
      if (cycling) cycles_left = 0;
  }
}

const Target* target_of(std::istringstream& words, bool persists) {
  std::string address;
  uint16_t port = 0;
  words >> address >> port;
  targets.push_back({});
  Target& target = targets.back();
  target.persists = persists;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&target.address);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &v4->sin_addr);
  return &target;
}

void listen(std::istringstream& words) {
  const Target* where = target_of(words, false);
  int backlog = 0;
  words >> backlog;
  rdma_cm_id* id = nullptr;
  auto* address = reinterpret_cast<sockaddr*>(const_cast<sockaddr_storage*>(&where->address));
  if (rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0 && rdma_bind_addr(id, address) == 0 &&
      rdma_listen(id, backlog) == 0)
    return say("listening %d", ntohs(rdma_get_src_port(id)));
  say("refused %d", errno);
  if (id != nullptr) rdma_destroy_id(id);
}

void obey(const std::string& line) {
  std::istringstream words(line);
  std::string order;
  words >> order;
  if (order == "listen") {
    listen(words);
  } else if (order == "hold") {
    holds = true;
  } else if (order == "load") {
    loads = true;
  } else if (order == "connect" || order == "persist") {
    const Target* target = target_of(words, order == "persist");
    int count = 0;
    for (words >> count; count > 0; --count) start(target);
  } else if (order == "cycle") {
    const Target* target = target_of(words, false);
    words >> cycles;
    cycles_left = cycles;
    start(target);
  } else if (order == "write") {
    written = to_write = 0;
    for (Connection* connection : connections) to_write += connection->established && write(connection) ? 1 : 0;
    say_written();
  } else if (order == "drop") {
    while (!connections.empty()) end(*connections.begin());
    say("dropped");
  }
}

void connect_again() {
  for (size_t i = 0; i < again.size();) {
    if (again[i].first > Clock::now()) {
      ++i;
      continue;
    }
    const Target* target = again[i].second;
    again[i] = again.back();
    again.pop_back();
    start(target);
  }
}

}  // namespace

int main() {
  channel = rdma_create_event_channel();
  if (channel == nullptr) return say("no event channel"), 1;
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  std::string waiting;
  say("ready");
  for (;;) {
    pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {channel->fd, POLLIN, 0}};
    const bool busy = loads || to_write > 0;
    ::poll(ready, 2, busy ? 0 : again.empty() ? 500 : 20);
    if (ready[0].revents != 0) {
      char bytes[4096];
      const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (got <= 0) return 0;
      waiting.append(bytes, static_cast<size_t>(got));
      for (size_t end; (end = waiting.find('\n')) != std::string::npos; waiting.erase(0, end + 1)) {
        const std::string line = waiting.substr(0, end);
        if (line == "quit") return 0;
        if (line == "vanish") _exit(0);
        obey(line);
      }
    }
    for (rdma_cm_event* event; rdma_get_cm_event(channel, &event) == 0;) handle(event);
    complete();
    if (loads)
      for (Connection* connection : connections)
        if (connection->established && !connection->writes) write(connection);
    connect_again();
  }
}
