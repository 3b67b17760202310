// SPDX-License-Identifier: Apache-2.0
// The definitions that manual pages and completion are made of: they are those of --help.
#include <nlohmann/json.hpp>
#include <set>

#include "base/settings_table.h"
#include "json/json.h"
#include "program.h"

namespace nupa::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

json definitions() {
  const Said said = run_nupa({"--print-definitions"});
  EXPECT_EQ(said.status, 0) << said.err;
  return parse_json(said.out).value_or(json());
}

/// Returns the names in a line of --help that begins with "  -n,--ranks " or "  --check,--no-check{false} ".
std::set<std::string> names_in_line(const std::string& line) {
  std::set<std::string> names;
  const std::string list = line.substr(2, line.find(' ', 2) - 2) + ",";
  for (size_t begin = 0, end = 0; (end = list.find(',', begin)) != list.npos; begin = end + 1) {
    const std::string name = list.substr(begin, end - begin);
    names.insert(name.substr(0, name.find('{')));
  }
  return names;
}

/// Returns the choices of `option` as --help has them: "{a,b}".
std::string choices_in_help(const json& option) {
  std::string text;
  for (const std::string choice : option["choices"]) text += (text.empty() ? "{" : ",") + choice;
  return text.empty() ? "" : text + "}";
}

/// Returns the words that begin the rows of a part of --help: "Subcommands:" or "Positionals:".
std::set<std::string> rows_in_help(const std::string& help, const std::string& title) {
  std::set<std::string> words;
  bool is_inside = false;
  for (const std::string& line : lines_of(help)) {
    if (line.rfind("  ", 0) != 0) is_inside = line == title;
    if (is_inside && line.size() > 2 && line[0] == ' ' && line[2] != ' ')
      words.insert(line.substr(2, line.find(' ', 2) - 2));
  }
  return words;
}

/// Compares a command and the commands inside it with what they print for --help.
void expect_help(const json& command, const Words& path) {
  Words arguments = path;
  arguments.push_back("--help");
  const Said said = run_nupa(arguments);
  EXPECT_EQ(said.status, 0) << said.err;
  std::set<std::string> shown, defined, positionals, commands;
  for (const std::string& line : lines_of(said.out)) {
    if (line.rfind("  -", 0) == 0) shown.merge(names_in_line(line));
  }
  for (const json& option : command["options"]) {
    for (const std::string name : option["names"]) defined.insert(name);
    EXPECT_TRUE(has(said.out, option["description"].get<std::string>())) << option << said.out;
    EXPECT_TRUE(has(said.out, choices_in_help(option))) << option << said.out;
    const std::string positional = option["positional"];
    if (!positional.empty()) positionals.insert(positional);
  }
  EXPECT_EQ(shown, defined) << said.out;
  EXPECT_EQ(rows_in_help(said.out, "Positionals:"), positionals) << said.out;
  for (const json& inner : command["commands"]) {
    const std::string name = inner["name"];
    commands.insert(name);
    Words further = path;
    further.push_back(name);
    expect_help(inner, further);
  }
  EXPECT_EQ(rows_in_help(said.out, "Subcommands:"), commands) << said.out;
}

const json& named(const json& list, const char* key, const std::string& name) {
  static const json none = json::object();
  for (const json& each : list)
    if (each[key] == name || (each[key].is_array() && !each[key].empty() && each[key].back() == name)) return each;
  ADD_FAILURE() << "there is no " << name << " in " << list;
  return none;
}

TEST(CliDefinitions, EachCommand_HasTheOptionsOfItsHelp) {
  const json all = definitions();
  ASSERT_TRUE(all.is_object());
  EXPECT_GE(all["commands"].size(), 8u);
  expect_help(all, {});
}

TEST(CliDefinitions, Values_HaveTheirChoicesAndDefaults) {
  const json all = definitions();
  const json& run = named(all["commands"], "name", "run");
  const json& launch = named(all["commands"], "name", "launch");
  const json& transport = named(run["options"], "names", "--transport");
  EXPECT_EQ(transport["choices"], json({"auto", "shm", "pool", "roce"}));
  EXPECT_EQ(transport["is_list"], true);
  const json& ranks = named(launch["options"], "names", "--ranks");
  EXPECT_EQ(ranks["names"], json({"-n", "--ranks"}));
  EXPECT_EQ(ranks["is_required"], true);
  EXPECT_EQ(ranks["choices"], json::array());
  EXPECT_EQ(named(launch["options"], "names", "--grace")["default"], "5");
  EXPECT_EQ(named(launch["options"], "names", "--no-label")["type"], "");
}

TEST(CliDefinitions, OnlyRunAndLaunch_RunAProgram) {
  for (const json& command : definitions()["commands"])
    EXPECT_EQ(command["runs_program"], command["name"] == "run" || command["name"] == "launch") << command["name"];
}

/// CLI11 hands the footer of the program down to commands without one.
TEST(CliDefinitions, Footer_IsOfTheCommandThatHasIt) {
  const json all = definitions();
  EXPECT_TRUE(has(all["footer"], "NUPA_RUNTIME_DIR"));
  EXPECT_EQ(named(all["commands"], "name", "stat")["footer"], "");
  EXPECT_TRUE(has(named(all["commands"], "name", "run")["footer"], "127"));
}

TEST(CliDefinitions, Variables_AreThoseOfTheTable) {
  const json variables = definitions()["variables"];
  ASSERT_EQ(variables.size(), std::size(base::kSettings));
  for (size_t i = 0; i < variables.size(); ++i) {
    const base::Setting& one = base::kSettings[i];
    EXPECT_EQ(variables[i]["name"], one.name);
    EXPECT_EQ(variables[i]["usual"], one.usual) << one.name;
    EXPECT_EQ(variables[i]["most"], one.most) << one.name;
    EXPECT_EQ(variables[i]["meaning"], one.meaning) << one.name;
    EXPECT_NE(variables[i]["kind"], "") << one.name;
  }
}

TEST(CliDefinitions, PrintDefinitions_IsNotInTheHelp) {
  EXPECT_FALSE(has(run_nupa({"--help"}).out, "definitions"));
  EXPECT_EQ(run_nupa({"run", "--print-definitions"}).status, 2);
}

}  // namespace
}  // namespace nupa::test
