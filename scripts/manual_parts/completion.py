# SPDX-License-Identifier: Apache-2.0
"""Completion of commands, options and values for bash and zsh."""

from command_pages import Command, sentence, value_name

BASH = r'''# bash completion of nupa. Written by scripts/manual.

# _nupa_describe COMMAND: sets the commands inside it, its options, and whether files or a program follow.
_nupa_describe() {
    commands='' options='' follows=''
    case "$1" in
@DESCRIPTIONS@
    esac
}

# _nupa_value COMMAND OPTION: sets the values of the option; "@file", "@any" and "@list WORDS..." are kinds. Fails: it takes none.
_nupa_value() {
    case "$1 $2" in
@VALUES@
    *) return 1 ;;
    esac
}

# _nupa_files WORD: completes a file.
_nupa_files() {
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
    compopt -o filenames 2>/dev/null
}

# _nupa_program INDEX: completes the program at this word, and its arguments.
_nupa_program() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif [ "$1" -eq "$COMP_CWORD" ]; then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    else
        _nupa_files "${COMP_WORDS[COMP_CWORD]}"
    fi
}

_nupa() {
    local current="${COMP_WORDS[COMP_CWORD]}" command=nupa option='' word i
    local commands options follows values
    COMPREPLY=()
    _nupa_describe "$command"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [ -n "$option" ]; then
            [ "$word" = = ] || option=''
        elif [ "$follows" = @program ] && [ "$word" = -- ]; then
            _nupa_program $((i + 1))
            return
        elif [[ "$word" == -* ]]; then
            if _nupa_value "$command" "$word"; then option="$word"; fi
        elif [[ " $commands " == *" $word "* ]]; then
            command+=" $word"
            _nupa_describe "$command"
        elif [ "$follows" = @program ]; then
            _nupa_program "$i"
            return
        fi
    done
    if [ -n "$option" ]; then
        [ "$current" != = ] || current=''
        _nupa_value "$command" "$option"
        case "$values" in
        @file) _nupa_files "$current" ;;
        @any) ;;
        @list*)
            word=''
            [[ "$current" != *,* ]] || word="${current%,*},"
            mapfile -t COMPREPLY < <(compgen -P "$word" -W "${values#@list }" -- "${current##*,}")
            ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current") ;;
        esac
    elif [[ "$current" == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    elif [ "$follows" = @program ]; then
        _nupa_program "$COMP_CWORD"
    elif [ "$follows" = @file ]; then
        _nupa_files "$current"
    else
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
    fi
}

complete -F _nupa nupa
'''


def follows(command):
    if command.definition["runs_program"]:
        return "@program"
    return "@file" if any(value_name(option) == "FILE" for option in command.positionals) else ""


def bash(program):
    descriptions, values = [], []
    for command in Command(program).all():
        words = " ".join(command.words)
        options = " ".join(name for option in command.options for name in option["names"])
        descriptions.append("    '%s') commands='%s' options='%s' follows='%s' ;;" % (
            words, " ".join(inner.definition["name"] for inner in command.commands), options, follows(command)))
        for option in command.options:
            if not option["type"]:
                continue
            kind = "@file" if value_name(option) == "FILE" else "@any"
            if option["choices"]:
                kind = ("@list " if option["is_list"] else "") + " ".join(option["choices"])
            values.append("    %s) values='%s' ;;" % (" | ".join("'%s %s'" % (words, name) for name in option["names"]), kind))
    return BASH.replace("@DESCRIPTIONS@", "\n".join(descriptions)).replace("@VALUES@", "\n".join(values))


def quoted(text):
    return "'%s'" % text.replace("'", "'\\''")


def in_brackets(text):
    """Returns a description inside [] of _arguments, or after a colon."""
    for letter in "\\[]:":
        text = text.replace(letter, "\\" + letter)
    return text


def zsh_value(option):
    if not option["type"]:
        return ""
    name = value_name(option).lower()
    if option["choices"] and option["is_list"]:
        return ":%s:_sequence compadd - %s" % (name, " ".join(option["choices"]))
    if option["choices"]:
        return ":%s:(%s)" % (name, " ".join(option["choices"]))
    return ":%s:%s" % (name, "_files" if value_name(option) == "FILE" else " ")


def zsh_option(option):
    """Returns the words of _arguments for the option, one for each name."""
    before = "*" if option["is_repeatable"] else "(%s)" % " ".join(option["names"] + option["excludes"])
    if option["names"][0] in ("-h", "--version"):
        before = "(- *)"
    equals = {name: "=" if option["type"] and name.startswith("--") else "" for name in option["names"]}
    return [quoted("%s%s%s[%s]%s" % (before, name, equals[name], in_brackets(option["description"]), zsh_value(option))) for name in option["names"]]


def zsh_function(command):
    name = "_" + "_".join(command.words)
    words = [word for option in command.options for word in zsh_option(option)]
    if command.definition["runs_program"]:
        words += [quoted("(-)1:program:_command_names -e"), quoted("(-)*::argument: _normal")]
    for number, option in enumerate(command.positionals, 1):
        words.append(quoted("%s:%s:%s" % ("*" if option["is_repeatable"] else number, value_name(option).lower(),
                                           "_files" if value_name(option) == "FILE" else " ")))
    if not command.commands:
        return "%s() {\n    _arguments -s -S : \\\n        %s\n}\n" % (name, " \\\n        ".join(words))
    words += [quoted("(-)1:command:->command"), quoted("(-)*::argument:->argument")]
    inner = "\n".join("            %s" % quoted("%s:%s" % (one.definition["name"], in_brackets(sentence(one.summary)).rstrip("."))) for one in command.commands)
    cases = "\n".join("        %s) _%s ;;" % (one.definition["name"], "_".join(one.words)) for one in command.commands)
    return ('%s() {\n    local curcontext="$curcontext" state state_descr line\n    typeset -A opt_args\n    _arguments -C : \\\n        %s\n'
            '    case "$state" in\n    command)\n        local -a commands=(\n%s\n        )\n        _describe command commands\n        ;;\n'
            '    argument)\n        curcontext="${curcontext%%:*}-$words[1]:"\n        case "$words[1]" in\n%s\n        esac\n        ;;\n    esac\n}\n'
            % (name, " \\\n        ".join(words), inner, cases))


def zsh(program):
    functions = [zsh_function(command) for command in reversed(Command(program).all())]
    return "#compdef nupa\n# zsh completion of nupa. Written by scripts/manual.\n\n" + "\n".join(functions) + '\n_nupa "$@"\n'
