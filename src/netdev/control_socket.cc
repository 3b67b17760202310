// SPDX-License-Identifier: Apache-2.0
#include "netdev/control_socket.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/system_error.h"
#include "json/json.h"
#include "progress/pauses.h"
#include "progress/deadline.h"
#include "progress/descriptors.h"

namespace nupa::netdev {
namespace {

constexpr char kPrefix[] = "net,";
/// The text of a message with a descriptor: the answer is in that file.
constexpr char kInFile[] = "file";

std::string name_of(const std::string& network, const std::string& node) { return kPrefix + network + "," + node; }

/// Returns an empty string if no message has arrived, or if the peer closed the socket.
std::string receive_from(int socket) {
  std::string message(ControlSocket::kMaxMessage, '\0');
  const ssize_t length = ::recv(socket, message.data(), message.size(), MSG_DONTWAIT);
  message.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return message;
}

bool send_to(int socket, const std::string& message) {
  return ::send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(message.size());
}

/// A message that carries one descriptor.
struct Envelope {
  iovec text;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Envelope(void* bytes, size_t length) : text{bytes, length} {
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = CMSG_LEN(sizeof(int));  // without the padding, which could hold a second descriptor
  }
  Envelope(const Envelope&) = delete;
  Envelope& operator=(const Envelope&) = delete;

  void put(int fd) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  base::UniqueFd take() {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
    int fd;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return base::UniqueFd(fd);
  }
};

/// Sends the answer. If that fails, the client only sees the connection close.
void send_answer(int socket, const std::string& answer) {
  if (answer.size() <= ControlSocket::kMaxMessage) {
    send_to(socket, answer);
    return;
  }
  const base::UniqueFd file(memfd_create("nupa-net-answer", MFD_CLOEXEC));
  if (!file) return;
  for (size_t at = 0; at < answer.size();) {
    const ssize_t written = ::write(file.get(), answer.data() + at, answer.size() - at);
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
  std::string text = kInFile;
  Envelope envelope(text.data(), text.size());
  envelope.put(file.get());
  ::sendmsg(socket, &envelope.header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<std::string> read_answer(int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size <= 0 ||
      status.st_size > static_cast<off_t>(ControlSocket::kMaxAnswer))
    return fail(EPROTO, "the file with the node's answer is empty or too large");
  std::string answer(static_cast<size_t>(status.st_size), '\0');
  for (size_t at = 0; at < answer.size();) {
    const ssize_t taken = ::pread(file, answer.data() + at, answer.size() - at, static_cast<off_t>(at));
    if (taken <= 0) return fail(EPROTO, "cannot read the file with the node's answer");
    at += static_cast<size_t>(taken);
  }
  return answer;
}

}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(progress::Loop& loop, const std::string& network,
                                                           const std::string& node, Answer answer,
                                                           const progress::Clock& clock) {
  std::unique_ptr<ControlSocket> control_socket(new ControlSocket(loop, std::move(answer), clock));
  auto dir = runtime::Directory::open();
  if (!dir) return tl::unexpected(dir.error());
  control_socket->dir_ = std::move(*dir);
  auto listener = control_socket->dir_->claim_name(name_of(network, node));
  if (!listener) {
    if (listener.error().code() == EEXIST)
      return fail(EEXIST, "a node of this name is already running: ", node, " in network ", network);
    return tl::unexpected(listener.error());
  }
  control_socket->listener_ = std::move(*listener);
  control_socket->name_ = name_of(network, node);
  auto arrivals =
      loop.watch(control_socket->listener_.get(), [raw = control_socket.get()](uint32_t) { raw->take_clients(); });
  if (!arrivals) return fail(arrivals.error().code(), "cannot watch the control socket of node ", node);
  control_socket->arrivals_ = std::move(*arrivals);
  return control_socket;
}

ControlSocket::~ControlSocket() {
  if (!name_.empty()) dir_->remove_name(name_);
}

void ControlSocket::take_clients() {
  for (;;) {
    base::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (base::is_out_of_descriptors(errno)) arrivals_->pause_until(clock_.now_ns() + progress::kAcceptPauseNs);
      return;
    }
    clients_.emplace_back();
    const auto client = std::prev(clients_.end());
    client->socket = std::move(socket);
    // A client connects first and asks later, so the loop watches its socket.
    auto watch = loop_.watch(client->socket.get(), [this, client](uint32_t) { serve(client); });
    if (!watch) {
      clients_.pop_back();
      continue;
    }
    client->watch = std::move(*watch);
    // The oldest client still gets an answer if its question has arrived in this turn.
    if (clients_.size() > kMaxClients) serve(clients_.begin());
  }
}

void ControlSocket::serve(Clients::iterator client) {
  const std::string question = receive_from(client->socket.get());
  const auto text = question.empty() ? std::nullopt : answer_(question);
  if (text) send_answer(client->socket.get(), *text);
  if (!text && !question.empty()) {
    waiting_.push_back(std::move(client->socket));
    if (waiting_.size() > kMaxClients) waiting_.pop_front();
  }
  clients_.erase(client);
}

void ControlSocket::answer_waiting(const std::string& answer) {
  for (const base::UniqueFd& client : waiting_) send_answer(client.get(), answer);
  waiting_.clear();
}

std::string ControlSocket::field(const std::string& message, const char* name) {
  const auto read = parse_json(message);
  if (!read || !read->is_object()) return {};
  const auto found = read->find(name);
  return found != read->end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::pair<std::string, std::string>> ControlSocket::list(const std::string& network) {
  std::vector<std::pair<std::string, std::string>> nodes;
  auto dir = runtime::Directory::open();
  if (!dir) return nodes;
  for (const std::string& name : (*dir)->names()) {
    if (!name.starts_with(kPrefix)) continue;
    const size_t comma = name.find(',', sizeof kPrefix - 1);
    if (comma == name.npos) continue;
    const std::string found = name.substr(sizeof kPrefix - 1, comma - sizeof kPrefix + 1);
    if (network.empty() || found == network) nodes.emplace_back(found, name.substr(comma + 1));
  }
  return nodes;
}

Result<base::UniqueFd> ControlSocket::begin_to_ask(const std::string& network, const std::string& node,
                                                   const std::string& question) {
  auto dir = runtime::Directory::open();
  if (!dir) return tl::unexpected(dir.error());
  auto socket = (*dir)->connect_name(name_of(network, node));
  if (!socket) return tl::unexpected(socket.error());
  if (!send_to(socket->get(), question))
    return base::fail_call(errno, "cannot send a request to node ", node, " of network ", network);
  return socket;
}

Result<std::string> ControlSocket::take_answer(int asked) {
  std::string answer(kMaxMessage, '\0');
  Envelope envelope(answer.data(), answer.size());
  const ssize_t length = ::recvmsg(asked, &envelope.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length <= 0) return fail(ECONNRESET, "the node exited before it answered");
  if (const base::UniqueFd file = envelope.take()) return read_answer(file.get());
  answer.resize(static_cast<size_t>(length));
  if (answer == kInFile) return fail(EMFILE, "no file descriptor for the node's answer (raise ulimit -n)");
  return answer;
}

Result<std::string> ControlSocket::ask(const std::string& network, const std::string& node, const std::string& question,
                                       int timeout_ms) {
  auto asked = begin_to_ask(network, node, question);
  if (!asked) return tl::unexpected(asked.error());
  if (!progress::wait_readable(asked->get(), progress::Deadline::in_ms(timeout_ms)))
    return fail(ETIMEDOUT, "node ", node, " of network ", network, " does not answer");
  return take_answer(asked->get());
}

}  // namespace nupa::netdev
