# How the launch scripts run their jobs; sourced. On SIGTERM bash ends at once and leaves a command in the foreground
# behind. Here the command is in the background, so that it can be ended, and the script after it.

# in_background COMMAND…: starts it with stdin and Ctrl-C, both of which bash takes from such commands.
in_background() { (trap - INT; exec "$@") <&0 & }

# wait_for PID: returns its exit status. A signal ends bash's own `wait` before. Whether the job still runs is what bash
# knows of it: the number of one that has ended may be another process's by now. Of one that ends just then bash may lose
# the status, whose `wait` is -1: then that of the signal stands for it.
wait_for() {
    local status by_signal=1
    while wait "$1"; status=$?; ((status > 128)) && [[ " "$(jobs -pr | tr '\n' ' ') == *" $1 "* ]]; do by_signal=$status; done
    ((status >= 0)) || status=$by_signal
    return "$status"
}

# run_job COMMAND…: runs it and returns its exit status. Ends the script, after the command, with status 143 on SIGTERM,
# which is passed on, and by SIGINT where Ctrl-C, which the command gets by itself, ended that.
run_job() {
    local stopped="" status=0
    trap 'stopped=1; kill $! || true' TERM
    trap : INT
    in_background "$@"
    wait_for $! || status=$?
    trap - TERM INT
    [[ -z $stopped ]] || exit 143
    ((status != 130)) || kill -INT $BASHPID
    return "$status"
}
