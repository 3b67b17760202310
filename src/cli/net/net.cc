// SPDX-License-Identifier: Apache-2.0
/// `nupa net`: a network device over NUPA's transports (docs/design/netdev.md).
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "json/json.h"
#include "netdev/node.h"
#include "base/settings.h"
#include "base/system_error.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/ranges.h"
#include "cli/transport_alias.h"
#include "cli/waiting.h"
#include "progress/waiter.h"
#include "runtime/directory.h"

namespace nupa::cli {
namespace {

using nlohmann::json;

constexpr int kTimeoutMs = 2000;

struct NetOptions {
  std::string network;
  std::string node;
  std::string interface = "nupa0";
  std::vector<std::string> addresses;
  std::vector<std::string> peers;
  std::string key_file;
  std::string config;
  uint32_t mtu = 0;
  uint32_t queues = 1;
  bool detach = false;
  bool all = false;
  bool machine_readable = false;
};

constexpr int kUsageError = 2;

/// Prints an error. Returns the exit status 1.
/// Returns an empty text if there is no folder for it, as in a system service.
std::string default_key_file(const std::string& network) {
  const char* const config = base::text_setting("XDG_CONFIG_HOME");
  const char* const home = base::text_setting("HOME");
  if (config == nullptr && home == nullptr) return "";
  return (config != nullptr ? std::string(config) : std::string(home) + "/.config") + "/nupa/" + network + ".key";
}

/// Writes the text to the new file `own`, and gives it the name `path` if no other process has made that file
/// meanwhile. Returns 0 or an errno value.
int write_and_link(int file, const std::string& text, const std::string& own, const std::string& path) {
  const ssize_t written = write(file, text.data(), text.size());
  if (written < 0) return errno;
  if (written != static_cast<ssize_t>(text.size())) return ENOSPC;
  if (link(own.c_str(), path.c_str()) != 0 && errno != EEXIST) return errno;
  return 0;
}

/// Creates a file with a new key if it does not exist. The first node of a network without a key does this. Two nodes
/// that do it at the same time use the same key, because the file appears completely or not at all.
Result<void> make_key_file(const std::string& path) {
  auto key = netdev::new_key();
  if (!key) return tl::unexpected(key.error());
  for (size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1))
    mkdir(path.substr(0, slash).c_str(), 0700);
  const std::string own = path + "." + std::to_string(getpid());
  const base::UniqueFd file(open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return base::fail_call(errno, "cannot create the key file");
  const int error = write_and_link(file.get(), netdev::text_of(*key) + "\n", own, path);
  unlink(own.c_str());
  if (error != 0) return fail(error, "cannot write the key file: ", std::strerror(error));
  return {};
}

Result<netdev::Key> read_key(const std::string& path) {
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) return base::fail_call(errno, "cannot read the key file");
  if (!S_ISREG(status.st_mode)) return fail(EINVAL, "the key file is not a regular file");
  if ((status.st_mode & 077) != 0) return fail(EACCES, "the key file is open to other users: chmod 600 it");
  char text[256];
  const ssize_t length = read(file.get(), text, sizeof text);
  if (length < 0) return base::fail_call(errno, "cannot read the key file");
  return netdev::key_from_text({text, static_cast<size_t>(length)});
}

/// Returns the keys that a file may have below the keys `path`, or an empty text if any key is accepted there.
std::string_view accepted_keys(const std::vector<std::string>& path) {
  if (path.empty()) return "network, key_file, mtu, nodes";
  if (path.size() == 2 && path[0] == "nodes" && !path[1].empty()) return "addresses, hosts, interface, mtu";
  return "";
}

/// Returns an error text with the line of the first key of the file that is unknown. Empty: there is none, or the file
/// cannot be read, which read_config() reports.
std::string unknown_key(const std::string& config) {
  std::ifstream file(config);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> path;  // the keys of the objects around the present key
  std::string wrong;
  const auto check = [&](size_t depth, const std::string& key, size_t line) {
    path.resize(depth - 1);
    const std::vector<std::string> accepted = CLI::detail::split(std::string(accepted_keys(path)), ',');
    const auto is_key = [&key](const std::string& word) { return CLI::detail::trim_copy(word) == key; };
    if (wrong.empty() && !accepted_keys(path).empty() && std::none_of(accepted.begin(), accepted.end(), is_key))
      wrong = fmt::format("{}: line {}: unknown key \"{}\" (expected {})", config, line, key, accepted_keys(path));
    path.push_back(key);
  };
  return parse_json(text, check) ? wrong : "";
}

/// Reads the MTU from a part of a file, if it has one. Returns an error text, or an empty one.
std::string read_mtu(const json& part, uint32_t* mtu) {
  if (!part.contains("mtu")) return {};
  const json& said = part["mtu"];
  const bool is_one =
      said.is_number_unsigned() && said.get<uint64_t>() >= netdev::kMinMtu && said.get<uint64_t>() <= netdev::kMaxMtu;
  if (!is_one)
    return fmt::format("mtu is {}; expected a number from {} to {}", json_text(said), netdev::kMinMtu, netdev::kMaxMtu);
  *mtu = said.get<uint32_t>();
  return {};
}

/// Reads a text or a list of texts from a part of a file, if it has one. Returns an error text, or an empty one.
template <class Value>
std::string read_texts(const json& part, const char* key, Value* value) {
  constexpr bool kIsList = std::is_same_v<Value, std::vector<std::string>>;
  if (!part.contains(key)) return {};
  const json& said = part[key];
  const auto is_text = [](const json& one) { return one.is_string(); };
  const bool is_one = kIsList ? said.is_array() && std::all_of(said.begin(), said.end(), is_text) : said.is_string();
  if (!is_one)
    return fmt::format("{} is {}; expected a {}", key, json_text(said), kIsList ? "list of strings" : "string");
  *value = said.get<Value>();
  return {};
}

/// Reads the options of this node, or the hosts of another one. Returns an error text, or an empty one.
std::string read_node(const json& config, const std::string& name, const json& node, NetOptions* options) {
  if (!node.is_object()) return fmt::format("node {} is {}; expected an object with addresses", name, json_text(node));
  if (name != options->node) {
    std::vector<std::string> hosts;
    const std::string wrong = read_texts(node, "hosts", &hosts);
    options->peers.insert(options->peers.end(), hosts.begin(), hosts.end());
    return wrong;
  }
  std::string wrong;
  if (options->addresses.empty()) wrong = read_texts(node, "addresses", &options->addresses);
  if (wrong.empty() && options->addresses.empty()) wrong = fmt::format("node {} has no addresses", name);
  if (wrong.empty() && options->mtu == 0) wrong = read_mtu(node.contains("mtu") ? node : config, &options->mtu);
  return wrong.empty() ? read_texts(node, "interface", &options->interface) : wrong;
}

/// Reads a file's options of the network and of this node. Returns an error text, or an empty one.
std::string read_config(NetOptions* options) {
  const auto about_file = [&](const std::string& wrong) { return options->config + ": " + wrong; };
  std::ifstream file(options->config);
  if (!file) return about_file(std::string("cannot read the file: ") + std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto parsed = parse_json(text);
  if (!parsed) return about_file("not valid JSON: " + std::string(parsed.error().what()));
  const json& config = *parsed;
  if (!config.is_object() || !config.contains("nodes") || !config["nodes"].is_object())
    return about_file("the file does not describe a network (expected an object with \"nodes\")");
  std::string network = options->network;
  if (const std::string wrong = read_texts(config, "network", &network); !wrong.empty()) return about_file(wrong);
  if (network != options->network) return about_file("the file describes network " + network);
  if (options->key_file.empty())
    if (const std::string wrong = read_texts(config, "key_file", &options->key_file); !wrong.empty())
      return about_file(wrong);
  const json& nodes = config["nodes"];
  if (!nodes.contains(options->node)) return about_file("the file has no node '" + options->node + "' (check --node)");
  for (const auto& [name, node] : nodes.items())
    if (const std::string wrong = read_node(config, name, node, options); !wrong.empty()) return about_file(wrong);
  return {};
}

std::string node_options(NetOptions given, netdev::NodeOptions* options) {
  if (!given.config.empty())
    if (std::string wrong = read_config(&given); !wrong.empty()) return wrong;
  // The names are checked before the key is read, because the key's file is named after the network.
  if (!netdev::is_name(given.network, netdev::kLongestNetwork) ||
      (!given.node.empty() && !netdev::is_name(given.node, netdev::kLongestNode)))
    return netdev::kNamesHave;
  options->network = given.network;
  options->node = given.node;
  options->interface = given.interface;
  options->queues = given.queues;
  options->mtu = given.mtu == 0 ? netdev::kMaxMtu : given.mtu;
  for (const std::string& text : given.addresses) {
    const auto prefix = netdev::Prefix::parse(text);
    if (!prefix) return given.config + ": '" + text + "': " + prefix.error().what();
    options->addresses.push_back(*prefix);
  }
  for (const std::string& text : given.peers) {
    const auto address = netdev::address_from(text);
    if (!address) return given.config + ": '" + text + "': " + address.error().what();
    options->peers.push_back(*address);
  }
  if (options->addresses.empty()) return "the node has no address (use --addr, for example --addr 10.77.0.1/24)";
  std::string path = given.key_file;
  if (path.empty()) {
    path = default_key_file(given.network);
    if (path.empty()) return "no folder for the network's key: HOME is not set (use --key-file FILE)";
    if (::access(path.c_str(), F_OK) != 0)
      if (auto made = make_key_file(path); !made) return path + ": " + made.error().what();
  }
  const auto key = read_key(path);
  if (!key) return path + ": " + key.error().what();
  options->key = *key;
  return {};
}

/// Returns a check that accepts what `parse` does, and prints its reason otherwise.
template <class Parse>
CLI::Validator parsed_by(Parse parse, const char* type) {
  return {[parse](const std::string& text) -> std::string {
            const auto parsed = parse(text);
            return parsed ? "" : fmt::format("'{}': {}", text, parsed.error().what());
          },
          type};
}

Result<void> check_name(const std::string& text, size_t longest) {
  if (!netdev::is_name(text, longest)) return fail(EINVAL, netdev::kNamesHave);
  return {};
}

/// Continues in the background when all is ready. The parent exits when the child reports that.
class Background {
 public:
  /// Returns false in the parent, which must exit with status().
  bool begin() {
    if (pipe2(pipe_, O_CLOEXEC) != 0) return true;
    child_ = fork();
    if (child_ > 0) {
      close(pipe_[1]);
      char word;
      status_ = read(pipe_[0], &word, 1) == 1 ? 0 : 1;
      return false;
    }
    setsid();
    return true;
  }
  void ready() {
    if (pipe_[1] < 0) return;
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    close(null);
    [[maybe_unused]] const ssize_t written = write(pipe_[1], "", 1);
    close(pipe_[1]);
  }
  int status() const { return status_; }

 private:
  int pipe_[2] = {-1, -1};
  pid_t child_ = -1;
  int status_ = 0;
};

int up(const NetOptions& given) {
  netdev::NodeOptions options;
  if (const std::string wrong = unknown_key(given.config); !wrong.empty()) {
    report_failure("net", wrong);
    return kUsageError;
  }
  if (const std::string wrong = node_options(given, &options); !wrong.empty()) return report_failure("net", wrong);
  Background background;
  if (given.detach && !background.begin()) return background.status();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
  const base::UniqueFd ended(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  auto node = netdev::Node::start(std::move(options));
  if (!node) return report_failure("net", node.error().what());
  const auto tell = [&] {
    if (given.detach) return background.ready();
    fmt::print("network {}: interface {} is up\n", given.network, given.interface);
    std::fflush(stdout);
  };
  return (*node)->run(ended.get(), tell) == 0 ? 0 : 1;
}

struct Found {
  std::string network, node;
  json answer;
};

/// Returns the nodes of this runtime directory that answer; with `only_here`, those of this network namespace.
std::vector<Found> find_nodes(const NetOptions& options, const char* question, bool only_here) {
  struct stat here {};
  stat("/proc/self/ns/net", &here);
  std::vector<Found> found;
  for (const auto& [network, node] : netdev::ControlSocket::list(options.network)) {
    if (!options.node.empty() && node != options.node) continue;
    const Waiting waiting("the answer of node " + node + " of network " + network);
    const auto answer = netdev::ControlSocket::ask(network, node, question, kTimeoutMs);
    if (!answer) {
      if (answer.error().code() == ETIMEDOUT)
        report_failure("net", "node " + node + " does not answer (its process may be stopped)");
      continue;
    }
    auto read = parse_json(*answer);
    if (!read || !read->is_object()) continue;
    if (only_here && read->value("namespace", uint64_t{0}) != here.st_ino) continue;
    found.push_back({network, node, std::move(*read)});
  }
  return found;
}

/// "no such node", with what the command line asked for.
std::string no_such_node(const NetOptions& options) {
  std::string text = options.node.empty() ? "no such node" : "no such node: " + options.node;
  if (!options.network.empty()) text += " of network " + options.network;
  if (options.node.empty() && !options.all) text += " in this network namespace";
  return text + " (nupa net status lists all nodes)";
}

int down(const NetOptions& options) {
  if (const auto dir = runtime::Directory::open(); !dir) return report_failure("net", dir.error().what());
  constexpr int64_t kLookNs = 10'000'000;
  const auto nodes = find_nodes(options, R"({"do":"who"})", options.node.empty() && !options.all);
  if (nodes.empty()) return report_failure("net", no_such_node(options));
  int status = 0;
  for (const Found& found : nodes) {
    const auto answer = netdev::ControlSocket::ask(found.network, found.node, R"({"do":"down"})", kTimeoutMs);
    if (!answer) status = report_failure("net", "node " + found.node + ": " + answer.error().what());
    // Wait until the node's interface is removed, so that the next node can use its name.
    const Waiting waiting("the end of node " + found.node + " of network " + found.network);
    for (int64_t waited = 0; answer && waited < kTimeoutMs * progress::kNsPerMs; waited += kLookNs) {
      if (!netdev::ControlSocket::ask(found.network, found.node, R"({"do":"who"})", kTimeoutMs)) break;
      progress::sleep_for(kLookNs);
    }
  }
  return status;
}

/// Returns a text such as "12.3 MB".
std::string text_with_unit(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "K", "M", "G", "T"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return fmt::format("{:.{}f} {}{}", value, prefix == 0 ? 0 : 1, kPrefixes[prefix], unit);
}

std::string bytes_of(const json& direction) { return text_with_unit(direction["bytes"].get<double>(), "B"); }
std::string rate_of(const json& direction) {
  return text_with_unit(direction["bits_per_second"].get<double>(), "bit/s");
}

void print_node(const json& node) {
  std::string addresses;
  for (const auto& address : node["addresses"]) addresses += " " + address.get<std::string>();
  fmt::print("{}: node {} on {}:{}, MTU {}, process {}\n", node["network"].get<std::string>(),
             node["node"].get<std::string>(), node["interface"].get<std::string>(), addresses,
             node["mtu"].get<uint32_t>(), node["pid"].get<int>());
  if (!node["peers"].empty())
    fmt::print("  {:<20} {:<6} {:<9} {:>10} {:>9} {:>13} {:>9} {:>13} {:>8}\n", "PEER", "STATE", "TRANSPORT",
               "ROUND TRIP", "SENT", "NOW", "RECEIVED", "NOW", "DROPPED");
  for (const auto& peer : node["peers"]) {
    uint64_t dropped = 0;
    for (const auto& [reason, count] : peer["dropped"].items()) dropped += count.get<uint64_t>();
    const double round_trip = peer.value("round_trip_us", 0.0);
    fmt::print("  {:<20} {:<6} {:<9} {:>10} {:>9} {:>13} {:>9} {:>13} {:>8}{}\n", peer["node"].get<std::string>(),
               peer["state"].get<std::string>(), peer.value("transport", "-"),
               round_trip > 0 ? fmt::format("{:.1f} us", round_trip) : "-", bytes_of(peer["sent"]),
               rate_of(peer["sent"]), bytes_of(peer["received"]), rate_of(peer["received"]), dropped,
               peer.contains("why") ? "  (" + peer["why"].get<std::string>() + ")" : "");
  }
  for (const auto& target : node["asked"])
    fmt::print("  {}: retrying, {}\n", target["at"].get<std::string>(), target["why"].get<std::string>());
  if (node["unknown_peers"].get<uint64_t>() > 0)
    fmt::print("  rejected connection requests of unknown peers: {}\n", node["unknown_peers"].get<uint64_t>());
}

int status(const NetOptions& options) {
  if (const auto dir = runtime::Directory::open(); !dir) return report_failure("net", dir.error().what());
  const auto nodes = find_nodes(options, R"({"do":"status"})", false);
  if (options.machine_readable) {
    json all = json::array();
    for (const Found& found : nodes) {
      all.push_back(found.answer);
      for (json& peer : all.back()["peers"]) add_transport_alias(&peer);
    }
    fmt::print("{}\n", json_text(all, 2));
  }
  if (nodes.empty() && !options.network.empty())
    return report_failure("net",
                          "no node of network " + options.network + " answers (nupa net status lists all networks)");
  if (options.machine_readable) return 0;
  if (nodes.empty()) fmt::print("no node is running\n");
  for (const Found& found : nodes) print_node(found.answer);
  return 0;
}

}  // namespace

Subcommand add_net(CLI::App& app) {
  auto options = std::make_shared<NetOptions>();
  CLI::App* net = app.add_subcommand("net", "Network device for IP programs (docs/guides/ip-network.md)");
  net->require_subcommand(1);
  CLI::App* up_command = net->add_subcommand("up", "Run a node of a network until `nupa net down`");
  up_command->add_option("network", options->network, "Name of the network")
      ->required()
      ->check(parsed_by([](const std::string& name) { return check_name(name, netdev::kLongestNetwork); }, "NAME"));
  up_command
      ->add_option("--addr,--addr6", options->addresses,
                   "Address of this node, such as 10.77.0.1/24 or fd77::1/64; may be repeated")
      ->check(parsed_by(netdev::Prefix::parse, "ADDRESS"));
  up_command->add_option("--node", options->node, "Name of this node (default: its first address)")
      ->check(parsed_by([](const std::string& name) { return check_name(name, netdev::kLongestNode); }, "NAME"));
  up_command->add_option("--peer", options->peers, "Address of another node's host; may be repeated")
      ->check(parsed_by(netdev::address_from, "ADDRESS"));
  up_command->add_option("--interface", options->interface, "Name of the interface")->capture_default_str();
  up_command->add_option("--mtu", options->mtu, "MTU in bytes (default 65520)")
      ->check(number_between(netdev::kMinMtu, netdev::kMaxMtu));
  up_command->add_option("--queues", options->queues, "Number of queues of the interface, each with a thread")
      ->check(number_between(1u, netdev::kMaxQueues))
      ->capture_default_str();
  up_command
      ->add_option("--key-file", options->key_file,
                   "Key file (default ~/.config/nupa/NETWORK.key, which the first node creates)")
      ->type_name("FILE");
  up_command->add_option("--config", options->config, "JSON file that describes the network")->check(CLI::ExistingFile);
  up_command->add_flag("--detach", options->detach, "Continue in the background when the interface is up");
  up_command->footer("The interface needs CAP_NET_ADMIN: run the command as root, or in `unshare -Urn`.");
  CLI::App* down_command = net->add_subcommand("down", "End the node of this network namespace");
  down_command->add_option("network", options->network, "Name of the network (default: any)");
  down_command->add_option("--node", options->node, "Name of the node to end, in any network namespace");
  down_command->add_flag("--all", options->all, "End the nodes of all network namespaces");
  CLI::App* status_command = net->add_subcommand("status", "Show the nodes of this user and their peers");
  status_command->add_option("network", options->network, "Name of the network (default: all)");
  status_command->add_option("--node", options->node, "Name of the node to show (default: all)");
  status_command->add_flag("--json", options->machine_readable, "Print JSON");
  CLI::App* key_command = net->add_subcommand("key", "Print a new key for the key files of a network's hosts");
  key_command->add_flag("--json", options->machine_readable, "Print JSON");
  return {net, [=] {
            if (*up_command) return up(*options);
            if (*down_command) return down(*options);
            if (*status_command) return status(*options);
            if (!*key_command) return 2;
            const auto key = netdev::new_key();
            if (!key) return report_failure("net", key.error().what());
            const std::string text = netdev::text_of(*key);
            fmt::print("{}\n", options->machine_readable ? json_text(json{{"key", text}}, 2) : text);
            return 0;
          }};
}

}  // namespace nupa::cli
