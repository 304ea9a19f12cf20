use strict;
use warnings;
use IO::Select;
use JSON::PP;

# Private copies of the descriptors; printed text goes to the log.
open(my $in,  '<&', \*STDIN)  or die "no input: $!";
open(my $out, '>&', \*STDOUT) or die "no output: $!";
open(STDIN,  '<',  '/dev/null') or die "$!";
open(STDOUT, '>&', \*STDERR)    or die "$!";
my $input = IO::Select->new($in);

my %functions = (
    shout => sub { my ($text) = @_; return uc $text },
    words => sub { my ($text) = @_; return split ' ', $text },
);

sub send_frame {
    my $data = pack 'N/a*', encode_json([@_]);
    while (length $data) {
        my $written = syswrite($out, $data) // exit 1;
        substr($data, 0, $written) = '';
    }
}

sub read_bytes {
    my ($wanted) = @_;
    my $data = '';
    while (length $data < $wanted) {
        sysread($in, $data, $wanted - length $data, length $data) or exit 0;    # the pool is gone
    }
    return $data;
}

sub receive {
    return @{ decode_json(read_bytes(unpack 'N', read_bytes(4))) };
}

sub call {
    my ($id, $name, $args, $kwargs, $budget, $window) = @_;
    my @values = eval {
        my $function = $functions{$name} or die "there is no function $name\n";
        $function->(@$args);
    };
    if (my $error = $@) {
        chomp $error;
        return send_frame('error', $id, 'die', $error, '', JSON::PP::false);
    }
    return $window ? stream($id, $window, @values) : send_frame('result', $id, $values[0]);
}

sub stream {
    my ($id, $granted, @values) = @_;
    my $began = time;
    for my $value (@values) {
        while (!$granted || $input->can_read(0)) {
            my ($tag, @items) = receive();
            if ($tag eq 'ping') { send_frame('pong', $items[0], $id, time - $began, 0) }
            elsif ($tag eq 'credit') { $granted += $items[1] }
            elsif ($tag eq 'cancel') {
                return send_frame('error', $id, 'Cancelled', $items[1], '', JSON::PP::true);
            }
        }
        $granted--;
        send_frame('chunk', $id, $value);
    }
    return send_frame('end', $id);
}

send_frame('hello', 1, $$ + 0, "perl $]");
while (my ($tag, @items) = receive()) {
    if    ($tag eq 'setup') { send_frame('ready') }
    elsif ($tag eq 'call')  { call(@items) }
    elsif ($tag eq 'ping')  { send_frame('pong', $items[0], undef, 0, 0) }
    elsif ($tag eq 'bye')   { exit 0 }
}
